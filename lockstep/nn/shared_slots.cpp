// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/shared_slots.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "lockstep/base/memory.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::nn {
std::vector<at::Tensor> SharedSlots::publish(at::TensorList values, const ProcessGroup& group,
                                             const CallOptions& options) {
  const at::Tensor& first = values.front();
  std::vector<std::int64_t> sizes = first.sizes().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(values.size()));
  const std::size_t bytes = values.size() * first.nbytes();
  // Powers of two: all outgrown slots together are smaller than the current ones.
  const std::size_t stride = std::bit_ceil(std::max(bytes, cache_line));
  const auto place_of = [&](std::int64_t slot, int rank) {
    const std::lock_guard lock(mutex_);
    const Slot& found = slots_.at(static_cast<std::size_t>(slot));
    return view_of(found.memory, static_cast<std::size_t>(rank) * found.bytes_of_rank, sizes,
                   c10::contiguous_strides(sizes), first.scalar_type());
  };

  at::Tensor own;
  const auto written = [&](std::optional<std::size_t> slot) {
    if (!slot) return slot;
    const at::Tensor place = place_of(static_cast<std::int64_t>(*slot), group.rank());
    own = at::from_blob(
        place.data_ptr(), sizes,
        [slots = weak_from_this(), place, slot = *slot](void*) {
          if (const auto kept = slots.lock()) kept->release(slot);
        },
        place.options());
    for (std::size_t i = 0; i < values.size(); ++i)
      own.select(0, static_cast<std::int64_t>(i)).copy_(values[i]);
    return slot;
  };
  auto slot = written(take(stride));
  auto slots = exchange(slot, group, options);
  if (std::find(slots.begin(), slots.end(), -1) != slots.end()) {
    const auto memory =
        group.allocate_shared(stride * static_cast<std::size_t>(group.size()), options);
    {
      const std::lock_guard lock(mutex_);
      slots_.push_back({memory, stride});
    }
    if (!slot) slot = written(take(stride));
    slots = exchange(slot, group, options);
  }

  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank)
    all.push_back(rank == group.rank() ? own
                                       : place_of(slots[static_cast<std::size_t>(rank)], rank));
  return all;
}

std::size_t SharedSlots::bytes() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(
      slots_.begin(), slots_.end(), std::size_t{0},
      [](std::size_t sum, const Slot& slot) { return sum + slot.memory.bytes(); });
}

// The smallest sufficient one.
std::optional<std::size_t> SharedSlots::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.is_used || slot.released >= calls_ || slot.bytes_of_rank < bytes) continue;
    if (!best || slot.bytes_of_rank < slots_[*best].bytes_of_rank) best = i;
  }
  if (best) slots_[*best].is_used = true;
  return best;
}

void SharedSlots::release(std::size_t slot) {
  const std::lock_guard lock(mutex_);
  slots_[slot].is_used = false;
  slots_[slot].released = calls_;
}

// All ranks' slots, or -1. Writes are visible.
std::vector<std::int64_t> SharedSlots::exchange(std::optional<std::size_t> slot,
                                                const ProcessGroup& group,
                                                const CallOptions& options) {
  const auto slots =
      all_gather_value(slot ? static_cast<std::int64_t>(*slot) : std::int64_t{-1}, group, options);
  const std::lock_guard lock(mutex_);
  ++calls_;
  return slots;
}

}  // namespace lockstep::nn
