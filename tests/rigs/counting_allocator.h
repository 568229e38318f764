// An allocator that measures the peak of tensor memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace lockstep::test {

// Counts the bytes of CPU tensors while it exists. Thread safety: several threads may allocate; one
// thread measures.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : below_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, priority);
  }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, below_, priority); }

  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t line = 64;
    void* const data = std::aligned_alloc(line, (bytes + line) / line * line);
    const std::lock_guard lock(mutex_);
    sizes_[data] = static_cast<std::int64_t>(bytes);
    live_ += static_cast<std::int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {data, data, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  // The peak of memory during `act`, above the current bytes.
  template <class Act>
  static std::int64_t peak_of(const Act& act) {
    const std::int64_t before = live_;
    peak_ = live_;
    act();
    return peak_ - before;
  }

  static std::int64_t live() { return live_; }

 private:
  static void release(void* data) {
    const std::lock_guard lock(mutex_);
    live_ -= sizes_.extract(data).mapped();
    std::free(data);
  }
  static constexpr std::uint8_t priority = 100;
  static inline std::mutex mutex_;
  static inline std::unordered_map<void*, std::int64_t> sizes_;
  static inline std::int64_t live_ = 0, peak_ = 0;

  c10::Allocator* const below_;
};

}  // namespace lockstep::test
