// Tells a job's other ranks of failures: of lost ranks of this host, and of living ranks that broke
// a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/comm/lines/lines.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

struct HostsContext;

// Tells the ranks of other hosts when a rank of this one is lost, also while nobody here waits for
// it.
class FailureNews {
 public:
  // `lines` must outlive it. `is_here` says of each rank of the job whether it runs on this host.
  FailureNews(std::shared_ptr<HostSession> session, Lines& lines, std::vector<bool> is_here);
  ~FailureNews();
  FailureNews(const FailureNews&) = delete;
  FailureNews& operator=(const FailureNews&) = delete;

  // Tells of the job's first failure, on whichever host, if a rank is known. Call it before leaving
  // a group: ranks that wait for this one then know why it left. Any thread.
  void tell_what_is_known() const;

 private:
  void watch();
  bool is_here(int rank) const;  // False also for a number that no rank has.

  const std::shared_ptr<HostSession> session_;
  Lines& lines_;
  const std::vector<bool> is_here_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  Thread thread_;
};

// Tells of a group that living ranks have broken, by not coming or by calling something else. Adds
// to `failure` who the ranks to blame are and where they were last seen, then notes it in the
// job page and logs it. `hosts` is null where shared memory serves all ranks.
void tell_of_break(HostSession& session, const HostsContext* hosts, Failure failure);

// A rank that gives up its group tells those of other hosts this: the job's failure, what broke the
// group of this rank, or how it left.
Failure news_of_leaving(HostSession& session);

}  // namespace lockstep::comm
