// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/registered_pool.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/group_hooks.h"

namespace lockstep::tensor {
namespace {

// The room of one tensor.
struct Room {
  std::shared_ptr<RegisteredRegion> region;
  void* data;

  static void free(void* room) {
    const std::unique_ptr<Room> owned(static_cast<Room*>(room));
    owned->region->give_back(owned->data);
  }
};

// As at::empty() makes it, but in `room`. A resize_() to more bytes moves it to ordinary memory.
at::Tensor tensor_in(std::unique_ptr<Room> room, std::size_t bytes, at::IntArrayRef sizes,
                     caffe2::TypeMeta type) {
  void* const data = room->data;
  c10::DataPtr pointer(data, room.release(), &Room::free, c10::DeviceType::CPU);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(pointer), c10::GetCPUAllocator(),
                                                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace

// --- RegisteredRegion ----------------------------------------------------------------------------

RegisteredRegion::RegisteredRegion(RegisteredMemory memory) : memory_(std::move(memory)) {
  free_.emplace(static_cast<std::byte*>(memory_.data()), memory_.bytes());
}

void* RegisteredRegion::take(std::size_t bytes) {
  const std::size_t needed = padded(bytes);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& gap) { return gap.second >= needed; });
  if (found == free_.end()) return nullptr;
  const auto [begin, size] = *found;
  free_.erase(found);
  if (size > needed) free_.emplace(begin + needed, size - needed);
  taken_.emplace(begin, needed);
  return begin;
}

void RegisteredRegion::give_back(void* room) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(static_cast<std::byte*>(room));
  check(taken != taken_.end(), "memory was given back to a pool that it is not of");
  auto gap = free_.insert(taken_.extract(taken)).position;
  const auto next = std::next(gap);
  if (next != free_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    free_.erase(next);
  }
  if (gap == free_.begin()) return;
  const auto last = std::prev(gap);
  if (last->first + last->second != gap->first) return;
  last->second += gap->second;
  free_.erase(gap);
}

// --- RegisteredPool ------------------------------------------------------------------------------

std::shared_ptr<RegisteredPool> RegisteredPool::of(const ProcessGroup& group) {
  return companion_of<RegisteredPool>(group);
}

at::Tensor RegisteredPool::empty(at::IntArrayRef sizes, const at::TensorOptions& type,
                                 const ProcessGroup& group, const CallOptions& options) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * type.dtype().itemsize();
  if (bytes <= small_bytes || !type.device().is_cpu()) return at::empty(sizes, type);
  auto region = region_for(bytes, group, options);
  void* const data = region == nullptr ? nullptr : region->take(bytes);
  if (data == nullptr) return at::empty(sizes, type);
  return tensor_in(std::make_unique<Room>(std::move(region), data), bytes, sizes, type.dtype());
}

std::size_t RegisteredPool::bytes() {
  const std::lock_guard lock(mutex_);
  return region_ == nullptr ? 0 : region_->bytes();
}

// The old region goes when its last tensor does.
std::shared_ptr<RegisteredRegion> RegisteredPool::region_for(std::size_t bytes,
                                                             const ProcessGroup& group,
                                                             const CallOptions& options) {
  const std::lock_guard lock(mutex_);
  const std::size_t held = region_ == nullptr ? 0 : region_->bytes();
  const std::size_t wanted = std::max(least_bytes, 2 * std::bit_ceil(std::min(bytes, limit_)));
  if (wanted <= held || wanted > limit_) return region_;
  try {
    region_ = std::make_shared<RegisteredRegion>(group.allocate(wanted, options));
  } catch (const Error& error) {
    if (error.fault() != Fault::system) throw;
    limit_ = wanted - 1;  // On all ranks, which get this Error alike.
  }
  return region_;
}

}  // namespace lockstep::tensor
