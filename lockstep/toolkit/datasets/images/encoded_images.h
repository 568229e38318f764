// Sources of encoded images for DecodedImages: folders, tar shards, or your own storage.
//
// Thread safety: implementations allow concurrent calls of all members.

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

// Memory for one image at a time. Only grows.
class LOCKSTEP_API EncodedBuffer {
 public:
  // Values are undefined. Invalidates the memory of earlier calls.
  std::span<std::uint8_t> take(std::size_t bytes);

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t capacity_ = 0;
};

class LOCKSTEP_API EncodedImages {
 public:
  virtual ~EncodedImages() = default;

  virtual std::size_t size() const = 0;

  // The target.
  virtual std::int64_t label(std::size_t index) const = 0;

  // Returns an encoded image in `buffer`, or in memory that lives as long as this object. Errors:
  // any. DecodedImages throws them even if bad files are skipped.
  virtual std::span<const std::uint8_t> read(std::size_t index, EncodedBuffer& buffer) const = 0;

  // Announces the next reads on this rank, in order, for prefetching. Must not block.
  virtual void will_read(std::span<const std::size_t> /*indices*/) const {}

  // For messages: "train/cat/7.jpg".
  virtual std::string name(std::size_t index) const = 0;

  // Should differ if images or order differ. Ranks with a common cache compare it.
  virtual std::uint64_t fingerprint() const = 0;
};

}  // namespace lockstep
