// Reports failures to a job's other ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/comm/tcp/connections.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

// Reports the job's first lost rank, if it is of this host, to other hosts, even while no rank here
// waits for it.
class FailureNotices {
 public:
  // `connections` must outlive it. `is_here`: by rank of the job, whether it is on this host.
  FailureNotices(std::shared_ptr<HostSession> session, Connections& connections,
                 std::vector<bool> is_here);
  ~FailureNotices();
  FailureNotices(const FailureNotices&) = delete;
  FailureNotices& operator=(const FailureNotices&) = delete;

  // Reports the job's first failure if its rank is known. Call it before leaving a group, so that
  // waiting ranks receive the reason. Any thread may call it.
  void tell_what_is_known() const;

 private:
  void watch();
  bool is_here(int rank) const;  // False for an invalid rank.

  const std::shared_ptr<HostSession> session_;
  Connections& connections_;
  const std::vector<bool> is_here_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  Thread thread_;
};

}  // namespace lockstep::comm
