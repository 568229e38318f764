// Signals are for the user's threads: a thread that is started while one of these lives gets none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/short_slices.h"

namespace lockstep {

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

// A thread of ours, with short slices: short_slices.h. Errors: system when the host lets this user
// have no more of them.
template <class Function, class... Arguments>
std::thread start_thread(Function function, Arguments... arguments) {
  const BlockSignals block;
  try {
    return std::thread(
        [function = std::move(function)](Arguments... own) {
          ask_for_short_slices();
          std::invoke(function, std::move(own)...);
        },
        std::move(arguments)...);
  } catch (const std::system_error& error) {
    throw Error(Fault::system, std::string("starting a thread: ") + error.what());
  }
}

}  // namespace lockstep
