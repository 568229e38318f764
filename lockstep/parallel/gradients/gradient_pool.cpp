// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_pool.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lockstep/parallel/gradients/padded.h"

namespace lockstep {
namespace {

thread_local std::vector<std::shared_ptr<GradientPool>> armed;

void* take_armed(std::size_t bytes) {
  for (const auto& pool : armed)
    if (void* const room = pool->take(bytes)) return room;
  return nullptr;
}

// Rooms that are in use, by address: whoever frees memory may have no more than that.
class TakenRooms {
 public:
  void add(void* room, std::shared_ptr<GradientPool> pool, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    rooms_[room] = {std::move(pool), bytes};
  }

  // False for memory that is no pool's.
  bool give_back(void* room) {
    std::unique_lock lock(mutex_);
    const auto found = rooms_.find(room);
    if (found == rooms_.end()) return false;
    const Room taken = std::move(found->second);
    rooms_.erase(found);
    lock.unlock();
    taken.pool->give_back(room, taken.bytes);
    return true;
  }

 private:
  struct Room {
    std::shared_ptr<GradientPool> pool;
    std::size_t bytes;
  };

  std::mutex mutex_;
  std::unordered_map<void*, Room> rooms_;
};

// Never destroyed, as tensors may outlive everything else.
TakenRooms& taken_rooms() {
  static auto* const rooms = new TakenRooms;
  return *rooms;
}

c10::Allocator* next_allocator = nullptr;  // LibTorch's own; set once.

void free_memory(void* data) {
  if (data != nullptr && !taken_rooms().give_back(data)) next_allocator->raw_deleter()(data);
}

// Stands before LibTorch's own allocator, to which all goes that no pool has room for. Memory of
// either is freed by its address alone: oneDNN takes and frees raw memory here.
class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (void* const room = take_armed(bytes))
      return {room, room, &free_memory, c10::Device(c10::DeviceType::CPU)};
    return next_allocator->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void install_allocator() {
  static const bool installed = [] {
    next_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new PoolAllocator, /*priority=*/1);
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
  for (const std::size_t bytes : sizes) {
    pool->free_.emplace(bytes, data);
    data += padded(bytes);
  }
  install_allocator();
  return pool;
}

GradientPool::Arming::Arming(const std::shared_ptr<GradientPool>& pool) : pool_(pool.get()) {
  if (pool != nullptr) armed.push_back(pool);
}

GradientPool::Arming::~Arming() {
  if (pool_ == nullptr || thread_ != std::this_thread::get_id()) return;
  armed.erase(std::find_if(armed.begin(), armed.end(),
                           [&](const auto& pool) { return pool.get() == pool_; }));
}

void* GradientPool::take(std::size_t bytes) {
  std::unique_lock lock(mutex_);
  const auto found = free_.find(bytes);
  if (found == free_.end()) return nullptr;
  void* const room = found->second;
  free_.erase(found);
  lock.unlock();
  taken_rooms().add(room, shared_from_this(), bytes);
  return room;
}

void GradientPool::give_back(void* room, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, room);
}

}  // namespace lockstep
