// oneCCL's settings, and the lock for its progress.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <oneapi/ccl.hpp>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::comm::engines {

// Starts oneCCL at the first call, with defaults for ranks on different hosts. The environment has
// priority. Throws at a later call with another interface, because oneCCL reads the settings once.
void start_library(const lockstep_engine_config& config);

// The right to make oneCCL progress, which moves the data of all communicators: one thread at a
// time. After a call was aborted, all calls fail, because progress would still move its data.
class Progress {
 public:
  // Throws Failed after an abort.
  std::unique_lock<std::mutex> enter();

  // Aborts an incomplete call: later enter() calls throw. The caller holds the lock.
  void abort() { is_aborted_ = true; }

 private:
  std::mutex mutex_;
  bool is_aborted_ = false;
};

Progress& progress();

}  // namespace lockstep::comm::engines
