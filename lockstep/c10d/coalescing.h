// Operations that a program begins together and awaits as one, as _coalescing_manager() of
// torch.distributed does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace lockstep::c10d {

using Started = c10::intrusive_ptr<::c10d::Work>;

// The operations that each thread has begun since it said that they belong together.
// Thread safety: any thread may call any member at any time.
class Coalescing {
 public:
  // Drops the operations that an exception has left of an earlier begin().
  void begin();

  bool has_begun() const;

  // Does nothing unless has_begun().
  void add(const Started& work);

  // Errors: misuse unless has_begun().
  std::vector<Started> end();

 private:
  using Works = std::map<std::thread::id, std::vector<Started>>;

  Works::node_type take();

  std::atomic<std::size_t> threads_{0};  // Entries of works_, readable without the lock.
  mutable std::mutex mutex_;
  Works works_;  // By the thread that has begun; guarded by mutex_.
};

// Complete when all of `works` are. It takes no turn of its own: collectives go on beside messages
// that have not come.
// Thread safety: any thread may call any member at any time.
// Errors: wait() and the future's are those of the first of `works` that failed.
class CoalescedWork final : public ::c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<Started> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;

  // Its value is an empty list.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<Started> works_;
};

}  // namespace lockstep::c10d
