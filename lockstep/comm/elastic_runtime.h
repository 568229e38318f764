// The parts of its process that an elastic group uses: time, a thread, signals, making groups.
//
// tests/simulation has another implementation: docs/internals/simulation.md.
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

class ElasticRuntime {
 public:
  virtual ~ElasticRuntime() = default;

  virtual Clock::time_point now() = 0;
  virtual void sleep_for(std::chrono::milliseconds time) = 0;
  Deadline in(std::chrono::milliseconds time);  // As lockstep::in().

  // Runs `body`, which must not throw, beside the caller. The result waits for its end: call it
  // once.
  virtual std::function<void()> start(std::function<void()> body) = 0;

  // As init_group().
  virtual ProcessGroup make_group(const InitOptions& options,
                                  std::chrono::milliseconds call_timeout) = 0;

  // As keep_preemption_signals() and preemption_signalled().
  virtual void keep_preemption_signals() = 0;
  virtual bool preemption_signalled() = 0;
};

ElasticRuntime& elastic_runtime();

}  // namespace lockstep::comm
