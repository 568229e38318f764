// What a collective works on: contiguous elements, somewhere.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/dtype.h"

namespace lockstep {

enum class DeviceKind : std::uint8_t { cpu = 0, cuda = 1 };

// Does not own `data`, which must stay valid until the collective is complete.
// Part of the engine ABI: the layout is frozen.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // Elements, not bytes.
  DType dtype = DType::float32;
  DeviceKind device = DeviceKind::cpu;
  int device_index = 0;
  void* stream = nullptr;  // The CUDA stream that `data` is ready on; null for CPU.

  std::size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace lockstep
