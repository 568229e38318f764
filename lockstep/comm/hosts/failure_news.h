// Tells the ranks of other hosts when a rank of this one is lost, also while nobody here waits for
// it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/comm/lines/lines.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

class FailureNews {
 public:
  // `lines` must outlive it. `is_here` says of each rank of the job whether it runs on this host.
  FailureNews(std::shared_ptr<HostSession> session, Lines& lines, std::vector<bool> is_here);
  ~FailureNews();
  FailureNews(const FailureNews&) = delete;
  FailureNews& operator=(const FailureNews&) = delete;

 private:
  void watch();

  const std::shared_ptr<HostSession> session_;
  Lines& lines_;
  const std::vector<bool> is_here_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  Thread thread_;
};

}  // namespace lockstep
