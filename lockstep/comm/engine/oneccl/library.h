// oneCCL in this process: its settings, and the lock for its progress.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <oneapi/ccl.hpp>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::comm::engines {

// Starts oneCCL at the first call. Sets defaults for ranks on different hosts, except where the
// environment has a value. oneCCL reads them once: a later call with another interface throws.
void start_library(const lockstep_engine_config& config);

// The right to make oneCCL progress. A thread that does so for one communicator moves the data of
// all communicators, so one thread at a time may do so. After a call was aborted, no thread does
// again, because its data would still move. All calls fail from then on.
class Progress {
 public:
  // Throws Failed after an abort.
  std::unique_lock<std::mutex> enter();

  // Aborts a call that is not complete. The caller holds the lock.
  void abort() { is_aborted_ = true; }

 private:
  std::mutex mutex_;
  bool is_aborted_ = false;
};

Progress& progress();

}  // namespace lockstep::comm::engines
