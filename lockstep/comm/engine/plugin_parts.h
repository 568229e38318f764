// For plugins, inline as plugin.h: a buffer in bytes, and its parts by member.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::plugin {

constexpr std::size_t bytes_of_element(std::uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr std::size_t bytes_of(const lockstep_buffer& buffer) {
  return buffer.count * bytes_of_element(buffer.dtype);
}

struct Part {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

inline Part whole(const lockstep_buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data), bytes_of(buffer)};
}

// Does nothing if the data is already there.
inline void copy_part(const Part& from, std::byte* to) {
  if (from.bytes > 0 && from.data != to) std::memcpy(to, from.data, from.bytes);
}

struct Parts {
  // Contiguous parts; `counts` are elements.
  Parts(const lockstep_buffer& buffer, const std::size_t* counts, int size)
      : all{static_cast<std::byte*>(buffer.data), 0} {
    begins.reserve(static_cast<std::size_t>(size));
    sizes.reserve(static_cast<std::size_t>(size));
    for (int member = 0; member < size; ++member) {
      begins.push_back(all.bytes);
      sizes.push_back(counts[member] * bytes_of_element(buffer.dtype));
      all.bytes += sizes.back();
    }
  }
  // The same part for each of `size` members.
  Parts(const Part& same, int size)
      : all(same),
        begins(static_cast<std::size_t>(size), 0),
        sizes(static_cast<std::size_t>(size), same.bytes) {}

  Part operator[](int member) const {
    const auto index = static_cast<std::size_t>(member);
    return {all.data + begins[index], sizes[index]};
  }

  Part all;                         // From the first part's begin to the last one's end.
  std::vector<std::size_t> begins;  // In `all`, in bytes, like sizes.
  std::vector<std::size_t> sizes;
};

inline bool are_equal(const std::size_t* counts, int size) {
  return std::all_of(counts, counts + size, [&](std::size_t count) { return count == *counts; });
}

}  // namespace lockstep::plugin
