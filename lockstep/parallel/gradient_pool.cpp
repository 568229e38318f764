// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradient_pool.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

#include "lockstep/parallel/padded.h"

namespace lockstep {
namespace {

thread_local std::shared_ptr<GradientPool> armed;

// Stands before LibTorch's own allocator, to which all goes that no pool has room for.
class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(c10::Allocator* next) : next_(next) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (armed != nullptr)
      if (c10::DataPtr data = armed->take(bytes)) return data;
    return next_->allocate(bytes);
  }
  // Holds for what raw_allocate() gives where no pool is armed: elsewhere it must not be used.
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const next_;
};

// Tensors that it has made may outlive everything else, so it is never destroyed.
void install_allocator() {
  static const bool installed = [] {
    c10::SetCPUAllocator(new PoolAllocator(c10::GetCPUAllocator()), /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

std::shared_ptr<GradientPool> GradientPool::make(const std::vector<std::size_t>& sizes,
                                                 const ProcessGroup& group) {
  std::shared_ptr<GradientPool> pool(new GradientPool);
  std::size_t total = 0;
  for (const std::size_t bytes : sizes) total += padded(bytes);
  pool->memory_ = group.allocate(total);
  auto* data = static_cast<std::byte*>(pool->memory_.data());
  pool->rooms_.reserve(sizes.size());
  for (const std::size_t bytes : sizes) {
    Room& room = pool->rooms_.emplace_back(Room{nullptr, data, bytes});
    pool->free_.emplace(bytes, &room);
    data += padded(bytes);
  }
  install_allocator();
  return pool;
}

GradientPool::Arming::Arming(std::shared_ptr<GradientPool> pool)
    : before_(std::exchange(armed, std::move(pool))) {}

GradientPool::Arming::~Arming() {
  if (thread_ == std::this_thread::get_id()) armed = before_;
}

c10::DataPtr GradientPool::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = free_.find(bytes);
  if (found == free_.end()) return {};
  Room* room = found->second;
  free_.erase(found);
  room->pool = shared_from_this();
  return {room->data, room, &give_back, c10::Device(c10::DeviceType::CPU)};
}

void GradientPool::give_back(void* taken) {
  auto* room = static_cast<Room*>(taken);
  const std::shared_ptr<GradientPool> pool = std::move(room->pool);
  const std::lock_guard lock(pool->mutex_);
  pool->free_.emplace(room->bytes, room);
}

}  // namespace lockstep
