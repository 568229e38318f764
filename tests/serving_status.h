// Serves `lockstep status` on a thread, as the agent's loop does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "lockstep/launch/status.h"

namespace lockstep::test {

// Returns a job id that only this process has, with a unique prefix: other jobs may run here.
inline std::string own_id(char first) { return first + std::to_string(::getpid()) + "-of-a-test"; }

class ServingStatus {
 public:
  explicit ServingStatus(const JobStatus& job)
      : service_(job.job_id, [job] { return job; }), thread_([this] { loop(); }) {}
  ~ServingStatus() {
    stop_ = true;
    thread_.join();
  }
  ServingStatus(const ServingStatus&) = delete;
  ServingStatus& operator=(const ServingStatus&) = delete;

 private:
  void loop() {
    while (!stop_) {
      service_.serve(launch::next_events({&service_}, in(std::chrono::milliseconds(10))));
    }
  }

  StatusService service_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::test
