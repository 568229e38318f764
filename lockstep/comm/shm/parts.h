// Divides a buffer's elements among ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "lockstep/base/memory.h"
#include "lockstep/comm/core/backend.h"

namespace lockstep::comm {

// Elements [begin, end).
struct Range {
  std::size_t begin;
  std::size_t end;

  std::size_t count() const { return end - begin; }
};

// The elements that `rank` reduces: whole cache lines, so that no two ranks write to one.
inline Range slice_of(std::size_t count, std::size_t element, int rank, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t each = padded((count + n - 1) / n * element) / element;
  const std::size_t begin = std::min(count, static_cast<std::size_t>(rank) * each);
  return {begin, std::min(count, begin + each)};
}

// The parts of a collective's buffers, in elements.
class Parts {
 public:
  Parts(const Collective& collective, int ranks)
      : counts_(collective.counts),
        each_(collective.signature.count),
        ranks_(static_cast<std::size_t>(ranks)) {}

  // The part of `rank` in a buffer with a part for every rank.
  Range of(int rank) const { return sum(0, 1, rank); }

  // For all_to_all: the data between two ranks, in the input of `from` and in the output of `to`.
  Range sent(int from, int to) const { return sum(index(from) * ranks_, 1, to); }
  Range received(int from, int to) const { return sum(index(to), ranks_, from); }

  std::size_t longest() const {
    return counts_.empty() ? each_ : *std::max_element(counts_.begin(), counts_.end());
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  // Part `rank` of those whose counts start at `first`, `stride` apart.
  Range sum(std::size_t first, std::size_t stride, int rank) const {
    if (counts_.empty()) return {index(rank) * each_, (index(rank) + 1) * each_};
    std::size_t begin = 0;
    for (std::size_t r = 0; r < index(rank); ++r) begin += counts_[first + r * stride];
    return {begin, begin + counts_[first + index(rank) * stride]};
  }

  std::span<const std::size_t> counts_;
  std::size_t each_;
  std::size_t ranks_;
};

// Byte addresses of a buffer's elements.
class Bytes {
 public:
  explicit Bytes(const Buffer& buffer)
      : begin_(static_cast<std::byte*>(buffer.data)), element_(size_of(buffer.dtype)) {}

  std::byte* at(std::size_t element) const { return begin_ + element * element_; }

 private:
  std::byte* begin_;
  std::size_t element_;
};

// memcpy() that also allows null pointers with 0 bytes, and a copy onto itself.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace lockstep::comm
