// Operations that torch.distributed's _coalescing_manager() starts together and awaits as one.

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

namespace lockstep::torch_backend {

using Started = c10::intrusive_ptr<c10d::Work>;

// Collects what each thread starts between begin() and end().
// Thread safety: full.
class Coalescing {
 public:
  // Drops what this thread's earlier begin() left.
  void begin();

  bool has_begun() const;

  // Does nothing unless has_begun().
  void add(const Started& work);

  // Errors: misuse unless has_begun().
  std::vector<Started> end();

 private:
  using Works = std::map<std::thread::id, std::vector<Started>>;

  Works::node_type take();

  std::atomic<std::size_t> threads_{0};  // Size of works_.
  mutable std::mutex mutex_;
  Works works_;  // By the thread that called begin().
};

// Complete when all of `works` are. Not queued itself: later collectives may run before that.
// Thread safety: any thread.
// Errors: wait() throws that of the first failed element of `works`; the future fails at once with
// the first in time.
class CoalescedWork final : public c10d::Work {
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

}  // namespace lockstep::torch_backend
