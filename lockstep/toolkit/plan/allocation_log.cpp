// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/allocation_log.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

namespace lockstep::plan {
namespace {

// Global: memory may be freed long after its log.
std::mutex mutex;
AllocationLog* current = nullptr;
c10::Allocator* below = nullptr;

void free_memory(void* data) {
  {
    const std::lock_guard lock(mutex);
    if (current != nullptr) current->note_freed(data);
  }
  below->raw_deleter()(data);
}

// By address only: oneDNN allocates and frees raw memory here.
class LoggingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = below->allocate(bytes);
    void* const data = memory.get();
    if (data == nullptr) return memory;
    memory.release_context();
    const std::lock_guard lock(mutex);
    if (current != nullptr) current->note_taken(data, bytes);
    return {data, data, &free_memory, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Never removed: its tensors outlive a log. GradientPool's allocator has equal priority; the later
// one wins.
void install_allocator() {
  static const bool installed = [] {
    below = c10::GetAllocator(c10::kCPU);
    c10::SetAllocator(c10::kCPU, new LoggingAllocator, /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

AllocationLog::AllocationLog() {
  install_allocator();
  const std::lock_guard lock(mutex);
  current = this;
}

AllocationLog::~AllocationLog() {
  const std::lock_guard lock(mutex);
  current = nullptr;
}

void AllocationLog::note_taken(const void* data, std::size_t bytes) {
  taken_[data] = {events_.size(), static_cast<std::int64_t>(bytes)};
  events_.push_back(static_cast<std::int64_t>(bytes));
}

void AllocationLog::note_freed(const void* data) {
  const auto found = taken_.find(data);
  if (found == taken_.end()) return;
  events_.push_back(-found->second.bytes);
  taken_.erase(found);
}

void AllocationLog::leave_out(const void* data) {
  const std::lock_guard lock(mutex);
  const auto found = taken_.find(data);
  if (found == taken_.end()) return;
  events_[found->second.event] = 0;
  taken_.erase(found);
}

double AllocationLog::live() const {
  const std::lock_guard lock(mutex);
  return static_cast<double>(std::accumulate(events_.begin(), events_.end(), std::int64_t{0}));
}

double AllocationLog::peak() const {
  const std::lock_guard lock(mutex);
  std::int64_t live = 0, most = 0;
  for (const std::int64_t bytes : events_) most = std::max(most, live += bytes);
  return static_cast<double>(most);
}

}  // namespace lockstep::plan
