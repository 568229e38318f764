// A thread whose stack has room for what we do on it, however little `ulimit -s` leaves others.
//
// std::thread takes the size from that limit, and cannot be told another.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/base/block_signals.h"
#include "lockstep/base/short_slices.h"

namespace lockstep {

// As std::thread: to be joined or detached before it is destroyed or assigned to, else the process
// ends; so it does when `body` throws.
class LOCKSTEP_API Thread {
 public:
  Thread() = default;

  // Errors: system when the host lets this user have no more threads.
  template <class Body>
  explicit Thread(Body body) {
    auto owned = std::make_unique<Body>(std::move(body));
    start(&run<Body>, owned.get());
    owned.release();  // The thread has it now.
  }

  Thread(Thread&& other) noexcept : id_(std::exchange(other.id_, std::nullopt)) {}
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return id_.has_value(); }
  bool is_current() const { return joinable() && ::pthread_equal(*id_, ::pthread_self()) != 0; }
  void join();
  void detach();

  // For a fork()ed child, in which the thread does not exist: nothing can be asked of it there.
  void forget() { id_.reset(); }

 private:
  template <class Body>
  static void* run(void* body) noexcept {
    const std::unique_ptr<Body> owned(static_cast<Body*>(body));
    (*owned)();
    return nullptr;
  }

  void start(void* (*routine)(void*), void* body);

  std::optional<pthread_t> id_;
};

// A thread of ours that waits for other ranks: with short slices, short_slices.h, and without
// signals, which are for the user's threads. Errors: as Thread's.
template <class Function, class... Arguments>
Thread start_thread(Function function, Arguments... arguments) {
  const BlockSignals block;
  return Thread([function = std::move(function), ... arguments = std::move(arguments)]() mutable {
    ask_for_short_slices();
    std::invoke(function, std::move(arguments)...);
  });
}

}  // namespace lockstep
