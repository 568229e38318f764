// The one background thread that runs as long as this process is part of a job.
//
// It holds the process's mutex in the job page, so that peers learn of a death from the kernel. It
// increases the heartbeat and looks for lost peers. In rank 0, if no agent started the job, it also
// runs the switchboard.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <future>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/thread.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/switchboard.h"

namespace lockstep {

class LOCKSTEP_API Sentinel {
 public:
  // Returns once `slot` of `page` is taken. `page` and `switchboard`, which may be null, must
  // outlive the sentinel. Calls `look` ten times a second until leave_as(); it must not throw.
  // Errors: misuse when a living process holds the slot.
  Sentinel(JobPage& page, int slot, Switchboard* switchboard, std::function<void()> look);

  // Leaves the slot in the phase given to leave_as(); without it, as abandoned.
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  void leave_as(JobPage::Phase how) { how_ = how; }

 private:
  void live(std::promise<void> entered);
  void serve_what_is_left(std::vector<pollfd>& entries);

  JobPage& page_;
  const int slot_;
  Switchboard* const switchboard_;
  const std::function<void()> look_;
  std::atomic<JobPage::Phase> how_{JobPage::Phase::abandoned};
  FileDescriptor stop_;  // An eventfd, readable once the sentinel should end.
  Thread thread_;
};

}  // namespace lockstep
