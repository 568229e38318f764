// Where encoded images come from: files of a folder, entries of tar shards, or your own storage.
// DecodedImages decodes, transforms and caches them, whichever their source is.
//
//   class Archive : public lockstep::EncodedImages { ... };
//   lockstep::DecodedImages train(std::make_shared<Archive>("train.db"), {.transform = ...});
//
// Thread safety: all members are called from several threads at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Memory for the bytes of one image after the other. It grows and never shrinks, so that a thread
// that reads a whole dataset allocates a few times only.
class LOCKSTEP_API EncodedBuffer {
 public:
  // Returns memory of `bytes` bytes, whose values are undefined. Ends the one returned before.
  std::span<std::uint8_t> take(std::size_t bytes);

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t capacity_ = 0;
};

class LOCKSTEP_API EncodedImages {
 public:
  virtual ~EncodedImages() = default;

  virtual std::size_t size() const = 0;

  // The class of an image, which becomes its target.
  virtual std::int64_t label(std::size_t index) const = 0;

  // Returns the bytes of an image: those of a JPEG, PNG, WebP, GIF, BMP or PNM file. They lie in
  // `buffer`, or in memory that lives as long as this object. Errors: any. They end the training
  // even if bad files are skipped: an image that cannot be read is no bad image.
  virtual std::span<const std::uint8_t> read(std::size_t index, EncodedBuffer& buffer) const = 0;

  // The images that read() returns next on this rank, in this order: time to fetch them. Returns at
  // once; most sources ignore it.
  virtual void will_read(std::span<const std::size_t> indices) const = 0;

  // For messages: "train/cat/7.jpg".
  virtual std::string name(std::size_t index) const = 0;

  // A number that differs between sources with other images, or in another order, as far as the
  // source knows. The ranks of a host that share a cache compare it.
  virtual std::uint64_t fingerprint() const = 0;
};

}  // namespace lockstep
