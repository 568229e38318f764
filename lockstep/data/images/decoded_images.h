// Encoded images as a dataset for lockstep::Loader: decoded, transformed and written into the rows
// of a batch, as floats [3, height, width] with a class as target.
//
//   lockstep::ImageFolder train("imagenet/train", {
//       .transform = RandomResizedCrop(224) | RandomHorizontalFlip() | Normalize(mean, std),
//       .cache = lockstep::HostCache{.bytes = 8ULL << 30, .shorter_side = 256, .group = world},
//       .bad_files = lockstep::BadFiles::skip(100),
//   });
//
// JPEG, PNG, WebP, GIF, BMP and PNM, recognised by their first bytes, and the first frame of
// animations; pixels are those of Pillow's convert("RGB"). Flaws of a JPEG that change no pixel,
// such as stray bytes before a marker, are counted; the first one is logged.
//
// Thread safety: any thread may call any const member at any time.
// Blocking: only the constructor, which is collective if the cache has a group.
// Errors: corrupt, with name and reason, for an image that cannot be decoded; those of the source.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_dataset.h"
#include "lockstep/data/images/encoded_images.h"
#include "lockstep/data/images/image_transforms.h"

namespace lockstep {

// Decoded pixels in memory that all ranks of a host map: each image is decoded once per host, by
// the rank that needs it first. Nothing is left behind, whichever way the ranks end. An image that
// finds no room is decoded each time; the pixels of a batch are the same.
struct HostCache {
  // Memory for all ranks of a host together, reserved at once: 3 bytes for each pixel, and 32 for
  // each image. ImageNet's training set at a shorter side of 256 takes about 340 GB.
  std::size_t bytes = 0;

  // Larger images are resized to this shorter side before they are kept and transformed, as by
  // Resize(shorter_side). Crops of training then see less detail. 0 keeps the size of the files.
  std::int64_t shorter_side = 0;

  // The ranks that share the cache; making the dataset is then collective. Without it, this
  // process has the cache for itself.
  std::optional<ProcessGroup> group = {};
};

// The treatment of images that cannot be decoded: damaged, of another format, or too large. A file
// that cannot be read is always an Error.
class LOCKSTEP_API BadFiles {
 public:
  static const BadFiles error;  // An Error, with name and reason.

  // Takes the next image that can be decoded instead, with its target: the same one on any number
  // of ranks and threads. Each rank logs a bad file once, when it meets it. An Error as soon as
  // this rank has met more than `at_most` of them. Threads that fill batches ahead may meet that
  // one some batches earlier.
  static BadFiles skip(std::size_t at_most) { return BadFiles(at_most); }

  // Nothing if they are errors.
  std::optional<std::size_t> at_most() const { return at_most_; }

 private:
  explicit constexpr BadFiles(std::optional<std::size_t> at_most) : at_most_(at_most) {}

  std::optional<std::size_t> at_most_;
};

struct ImageOptions {
  // Must leave all images with one size.
  ImageTransform transform = {};
  std::optional<HostCache> cache = {};
  BadFiles bad_files = BadFiles::error;
};

// A value of DecodedImages::bad_files().
struct BadFile {
  std::size_t index = 0;
  std::string name;
  std::string reason;
};

class LOCKSTEP_API DecodedImages : public BatchDataset {
 public:
  // Errors: misuse for a transform that leaves images of different sizes, or a cache without room
  // for an image; mismatch, on all ranks, if sources or options of the cache differ; those of
  // allocate_shared().
  explicit DecodedImages(std::shared_ptr<const EncodedImages> source, ImageOptions options = {});
  ~DecodedImages() override;
  DecodedImages(const DecodedImages&) = delete;
  DecodedImages& operator=(const DecodedImages&) = delete;

  std::size_t size() const override;
  SampleSpec data_spec() const override;    // float [3, height, width]
  SampleSpec target_spec() const override;  // int64
  void fill(const BatchRows& rows) const override;
  void will_read(std::span<const std::size_t> indices) const override;
  std::string sample_name(std::size_t index) const override;

  // The bad files that this rank has met so far, by index. Empty unless they are skipped.
  std::vector<BadFile> bad_files() const;

  // JPEG images that this rank has decoded so far and about which libjpeg has warned. All their
  // pixels were decoded from the file, but damaged image data can cause the same warnings.
  std::size_t flawed_images() const;

  // The cache's memory, for memory_report(); empty without a cache.
  RegisteredMemory cache_memory() const;

  // Images that the host's ranks have decoded into the cache so far.
  std::size_t cached_images() const;

 private:
  class State;

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
