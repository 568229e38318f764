// Where gradients of one element type lie side by side: in memory that every rank of the host has
// mapped, or in a CUDA device's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class BucketMemory {
 public:
  // Zeros. Collective in CPU memory.
  BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
               const ProcessGroup& group);

  // None on a device.
  const std::optional<RegisteredMemory>& registered() const { return registered_; }

  // A tensor of its own that keeps the memory, from byte `begin` on; none that autograd takes for a
  // view of another. Strides count elements.
  at::Tensor tensor(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides) const;

  // All that lies there. Complex numbers are pairs of reals.
  at::Tensor flat(std::size_t begin, std::size_t bytes) const;

 private:
  at::Tensor view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                  at::ScalarType dtype) const;

  const at::ScalarType dtype_;
  std::optional<RegisteredMemory> registered_;
  at::Tensor on_device_;
};

}  // namespace lockstep
