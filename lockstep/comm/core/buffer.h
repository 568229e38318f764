// The data of a collective: contiguous elements in CPU or CUDA memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "lockstep/comm/core/dtype.h"

namespace lockstep {

enum class DeviceKind : std::uint8_t { cpu = 0, cuda = 1 };

// Does not own `data`, which must stay valid until the collective is complete. Elements are float32
// by default; buffer_of() takes the type from a container.
// Part of the engine ABI: the layout is frozen.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // Elements, not bytes.
  DType dtype = DType::float32;
  DeviceKind device = DeviceKind::cpu;
  int device_index = 0;
  void* stream = nullptr;  // CUDA stream on which `data` is ready; null for CPU.

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Makes a Buffer from a vector, array or span. Not for float16 and bfloat16, which have no type in
// C++20.
template <std::ranges::contiguous_range Values>
Buffer buffer_of(Values& values) {
  using Value = std::remove_const_t<std::ranges::range_value_t<Values>>;
  return {.data = const_cast<Value*>(std::ranges::data(values)),
          .count = std::ranges::size(values),
          .dtype = dtype_of<Value>};
}

}  // namespace lockstep
