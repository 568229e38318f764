// oneCCL in this process: its settings, and who may work in it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <mutex>
#include <oneapi/ccl.hpp>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::plugin {

// Starts oneCCL at the first call, with what suits ranks of different hosts for every setting that
// the environment does not have already. It reads them once: later calls with another interface
// throw.
void start_library(const lockstep_engine_config& config);

// oneCCL moves all communicators' data when any of them is asked how far it is, in the thread that
// asks. So one thread asks at a time; and once a call was given up, nobody asks any more, as its
// data would still be moved. All calls fail from then on.
class Progress {
 public:
  // Throws Failed when a call was given up.
  std::unique_lock<std::mutex> enter();

  // Of a call that is not complete. Hold the lock.
  void give_up() { is_given_up_ = true; }

 private:
  std::mutex mutex_;
  bool is_given_up_ = false;
};

Progress& progress();

// oneCCL's service for addresses writes to connections that may be closed, which would end the
// process. Threads that are started meanwhile ignore it, too.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep::plugin
