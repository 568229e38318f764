// Decides when a group's background thread takes over calls that their callers do not run.
//
// The thread first gives callers `patience`: a hand-over costs as much as a hundred short calls.
// While calls keep coming, it polls, because waking it costs more than a call.
//
// Thread safety: its owner calls all members under one lock.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "lockstep/base/time.h"

namespace lockstep::comm {

class Takeover {
 public:
  static constexpr std::chrono::microseconds patience{200};

  void note_call() { ++calls_; }

  // Callers get `patience` from now on.
  void give_time() { due_ = Clock::now() + patience; }

  bool is_due() const { return Clock::now() >= due_; }

  void hurry();

  // Wakes the thread if it sleeps without a time limit. Call it when there may be work.
  void rouse();

  // Sleeps until there may be work. `has_work`: a call exists, not yet due.
  void sleep(std::unique_lock<std::mutex>& lock, bool has_work);

 private:
  std::condition_variable wake_;
  Clock::time_point due_;
  std::uint64_t calls_ = 0;
  std::uint64_t seen_ = 0;  // Value of `calls_` before the last sleep.
  bool is_asleep_ = false;  // Without a time limit.
};

}  // namespace lockstep::comm
