// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

std::int64_t elements_in(std::size_t bytes, at::ScalarType dtype) {
  return static_cast<std::int64_t>(bytes / c10::elementSize(dtype));
}

}  // namespace

BucketMemory::BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
                           const ProcessGroup& group)
    : dtype_(dtype) {
  if (device.is_cpu())
    registered_ = group.allocate(bytes);
  else
    on_device_ = at::zeros({elements_in(bytes, dtype)}, at::dtype(dtype).device(device));
}

// Avoids an autograd view: it would share its version counter with all others, and detach_(), which
// zero_grad(false) calls, refuses views.
at::Tensor BucketMemory::view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::ScalarType dtype) const {
  if (registered_) return view_of(*registered_, begin, sizes, strides, dtype);
  at::Tensor tensor = at::empty({0}, on_device_.options().dtype(dtype));
  tensor.set_(on_device_.storage(), elements_in(begin, dtype), sizes, strides);
  return tensor;
}

at::Tensor BucketMemory::tensor(std::size_t begin, at::IntArrayRef sizes,
                                at::IntArrayRef strides) const {
  return view(begin, sizes, strides, dtype_);
}

at::Tensor BucketMemory::flat(std::size_t begin, std::size_t bytes) const {
  const at::ScalarType real = c10::toRealValueType(dtype_);
  return view(begin, {elements_in(bytes, real)}, {1}, real);
}

}  // namespace lockstep
