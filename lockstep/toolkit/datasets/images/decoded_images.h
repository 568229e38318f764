// A dataset of encoded images for lockstep::DataLoader (docs/guide/images.md): decodes and
// transforms each image into floats [3, height, width]. The target is the class.
//
// Formats, recognised by their first bytes: JPEG, PNG, GIF, BMP, PNM and, with libwebp, WebP; of
// animations, the first frame. Pixels equal those of Pillow's convert("RGB").
//
// Thread safety: const members may be called concurrently.
// Blocking: the constructor, which is collective if the cache has a group; fill(), while the source
// reads.
// Errors: corrupt, with name and reason, for an image that cannot be decoded; the source's.

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
#include "lockstep/toolkit/datasets/images/encoded_images.h"
#include "lockstep/toolkit/datasets/images/image_transforms.h"

namespace lockstep {

// Decoded pixels in memory that all ranks of a host map (docs/guide/images.md). The memory is freed
// however the ranks exit. Images beyond its size are decoded each time.
struct HostCache {
  // For the whole host, reserved at once: 3 bytes per pixel, and up to 95 per image.
  std::size_t bytes = 0;

  // Resizes larger images to this shorter side before they are cached and transformed: random crops
  // then have less detail. 0 keeps the original size.
  std::int64_t shorter_side = 0;

  // The ranks that share the cache. Default: this process.
  std::optional<ProcessGroup> group = {};
};

// Treatment of images that are damaged, of another format, or too large. An unreadable file is
// always an Error.
class LOCKSTEP_API BadFiles {
 public:
  static const BadFiles error;  // Throws an Error.

  // Uses the next decodable image, with its target: the same on any number of ranks and threads. A
  // rank throws an Error once it has found more than `at_most` different bad files.
  static BadFiles skip(std::size_t at_most) { return BadFiles(at_most); }

  // Empty for `error`.
  std::optional<std::size_t> at_most() const { return at_most_; }

 private:
  explicit constexpr BadFiles(std::optional<std::size_t> at_most) : at_most_(at_most) {}

  std::optional<std::size_t> at_most_;
};

struct ImageOptions {
  // Its output size must not depend on the image.
  ImageTransform transform = {};
  std::optional<HostCache> cache = {};
  BadFiles bad_files = BadFiles::error;
};

struct BadFile {
  std::size_t index = 0;
  std::string name;
  std::string reason;
};

class LOCKSTEP_API DecodedImages : public BatchDataset {
 public:
  // Errors: misuse if the transform's output size depends on the image, for a negative
  // `shorter_side`, or unless `bytes` exceeds 16 per image. Mismatch, on all ranks, for different
  // sources or cache options. Also ProcessGroup::allocate_shared()'s.
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

  // Bad files that this rank has skipped, by index.
  std::vector<BadFile> bad_files() const;

  // JPEG images with a warning of libjpeg on this rank: all pixels were decoded, but image data may
  // be damaged.
  std::size_t flawed_images() const;

  // For memory_report(); empty without a cache.
  RegisteredMemory cache_memory() const;

  // Images in the cache of this host.
  std::size_t cached_images() const;

 private:
  class State;

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
