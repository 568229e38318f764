// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/registered_region.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep {
namespace {

struct TensorBlock {
  std::shared_ptr<RegisteredRegion> region;
  void* data;

  static void free(void* block) {
    const std::unique_ptr<TensorBlock> owned(static_cast<TensorBlock*>(block));
    owned->region->give_back(owned->data);
  }
};

}  // namespace

RegisteredRegion::RegisteredRegion(RegisteredMemory memory) : memory_(std::move(memory)) {
  free_.emplace(static_cast<std::byte*>(memory_.data()), memory_.bytes());
}

std::size_t RegisteredRegion::block_bytes(std::size_t bytes) {
  return padded(std::max<std::size_t>(bytes, 1));
}

void* RegisteredRegion::take(std::size_t bytes) {
  const std::size_t needed = block_bytes(bytes);
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

void RegisteredRegion::give_back(void* block) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(static_cast<std::byte*>(block));
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

at::Tensor empty_in(const std::shared_ptr<RegisteredRegion>& region, at::IntArrayRef sizes,
                    at::ScalarType type, at::MemoryFormat format) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  void* const data = region->take(bytes);
  if (data == nullptr) return {};
  auto block = std::make_unique<TensorBlock>(region, data);
  c10::DataPtr pointer(data, block.release(), &TensorBlock::free, c10::DeviceType::CPU);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(pointer), c10::GetCPUAllocator(),
                                                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  return tensor;
}

}  // namespace lockstep
