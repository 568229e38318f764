// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/registered_pool.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_hooks.h"

namespace lockstep::tensor {

std::shared_ptr<RegisteredPool> RegisteredPool::of(const ProcessGroup& group) {
  return attachment_of<RegisteredPool>(group);
}

at::Tensor RegisteredPool::empty(at::IntArrayRef sizes, const at::TensorOptions& type,
                                 const ProcessGroup& group, const CallOptions& options) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * type.dtype().itemsize();
  if (bytes <= small_bytes || !type.device().is_cpu()) return at::empty(sizes, type);
  const auto region = region_for(bytes, group, options);
  const at::Tensor tensor = region == nullptr
                                ? at::Tensor()
                                : empty_in(region, sizes, c10::typeMetaToScalarType(type.dtype()));
  return tensor.defined() ? tensor : at::empty(sizes, type);
}

std::size_t RegisteredPool::bytes() {
  const std::lock_guard lock(mutex_);
  return region_ == nullptr ? 0 : region_->memory().bytes();
}

std::shared_ptr<RegisteredRegion> RegisteredPool::region_for(std::size_t bytes,
                                                             const ProcessGroup& group,
                                                             const CallOptions& options) {
  const std::lock_guard lock(mutex_);
  const std::size_t held = region_ == nullptr ? 0 : region_->memory().bytes();
  const std::size_t wanted = std::max(least_bytes, 2 * std::bit_ceil(std::min(bytes, limit_)));
  if (wanted <= held || wanted > limit_) return region_;
  try {
    region_ = std::make_shared<RegisteredRegion>(group.allocate(wanted, options));
  } catch (const Error& error) {
    if (error.fault() != Fault::system) throw;
    limit_ = wanted - 1;  // On all ranks: all get this Error.
  }
  return region_;
}

}  // namespace lockstep::tensor
