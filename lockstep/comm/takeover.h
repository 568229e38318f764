// Decides when a group's background thread takes over calls that their callers do not run.
//
// A caller usually runs its call itself when it waits for it. The thread first gives callers
// `patience`, because a hand-over between threads costs as much as a hundred short calls. While
// calls keep coming, the thread polls, because waking it for each call would cost more than the
// call. Without new calls it sleeps until it is woken.
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

  // Whether that time is over.
  bool is_due() const { return Clock::now() >= due_; }

  // The thread takes over immediately.
  void hurry();

  // Wakes the thread if it sleeps without a time limit. Call it when there may be work.
  void rouse();

  // Puts the thread to sleep until it should look again. `has_work`: a call exists, not yet due.
  void sleep(std::unique_lock<std::mutex>& lock, bool has_work);

 private:
  std::condition_variable wake_;
  Clock::time_point due_;
  std::uint64_t calls_ = 0;
  std::uint64_t seen_ = 0;  // Value of `calls_` before the last sleep.
  bool is_asleep_ = false;  // Without a time limit.
};

}  // namespace lockstep::comm
