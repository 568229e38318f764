// Registered memory in which autograd itself makes large gradients, so that nothing is copied to be
// summed.
//
// While a pool is armed on a thread, tensors that the thread makes, and that are exactly as large
// as a gradient which the pool has room for, get their memory from it. Which tensors these are does
// not matter to anybody: one that is no gradient after all is a tensor like any other, and a
// gradient that finds no room is summed by way of the ranks' rooms instead.
//
// Thread safety: tensors may be freed on any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class GradientPool : public std::enable_shared_from_this<GradientPool> {
 public:
  // Collective. Room for one tensor of each of these sizes.
  static std::shared_ptr<GradientPool> make(const std::vector<std::size_t>& sizes,
                                            const ProcessGroup& group);

  // While one lives its pool is armed on the thread that made it, beside those of others: two
  // passes of one backward() end in any order. Null is no pool.
  class Arming {
   public:
    explicit Arming(const std::shared_ptr<GradientPool>& pool);
    ~Arming();
    Arming(const Arming&) = delete;
    Arming& operator=(const Arming&) = delete;

   private:
    const GradientPool* const pool_;
    const std::thread::id thread_ = std::this_thread::get_id();
  };

  const RegisteredMemory& memory() const { return memory_; }

  // Null when there is no room of exactly that size. Keeps the pool alive until it is freed.
  void* take(std::size_t bytes);
  void give_back(void* room, std::size_t bytes);

 private:
  GradientPool() = default;

  RegisteredMemory memory_;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
};

}  // namespace lockstep
