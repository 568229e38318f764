// A thread that runs jobs in order.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

#include "lockstep/base/thread.h"

namespace lockstep::parallel {

class OrderedJobs {
 public:
  OrderedJobs() = default;
  ~OrderedJobs();  // Blocking: until the current job is done. Drops later ones.
  OrderedJobs(const OrderedJobs&) = delete;
  OrderedJobs& operator=(const OrderedJobs&) = delete;

  // Returns the job's number, from 1. After an Error, jobs are dropped until take_error().
  std::uint64_t start(std::function<void()> job);

  // Blocking: until jobs up to `number` are done. Errors: that of the first job that failed.
  void wait(std::uint64_t number);
  void wait() { wait(started_); }

  // Blocking: until all are done. Leaves an Error to the next wait.
  void let_finish() noexcept;

  // As let_finish(), but returns and clears the Error.
  std::exception_ptr take_error() noexcept;

  bool busy() const;

 private:
  void work();

  Thread thread_;  // Started with the first job.
  std::uint64_t started_ = 0;
  mutable std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // The first is empty while it runs.
  std::uint64_t done_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
};

}  // namespace lockstep::parallel
