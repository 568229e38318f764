// Memory for gradients of one element type, side by side. Every rank of the host has mapped it, or
// it lies in a CUDA device's memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class BucketMemory {
 public:
  // The memory is zeroed. Collective in CPU memory.
  BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
               const ProcessGroup& group);

  // Empty on a device.
  const std::optional<RegisteredMemory>& registered() const { return registered_; }

  // Returns a tensor at byte `begin` that keeps the memory alive. Autograd does not treat it as a
  // view of another tensor. Strides count elements.
  at::Tensor tensor(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides) const;

  // The memory as one flat tensor. Complex numbers are pairs of reals.
  at::Tensor flat(std::size_t begin, std::size_t bytes) const;

 private:
  at::Tensor view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                  at::ScalarType dtype) const;

  const at::ScalarType dtype_;
  std::optional<RegisteredMemory> registered_;
  at::Tensor on_device_;
};

}  // namespace lockstep
