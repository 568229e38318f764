// The job pages on which a host's ranks report their activity, as their agent reads them: by local
// rank.
//
// Until there is a session page, it is the agent's own page, with a slot for each local rank. A
// session page is that of a group which they share with another agent's ranks on this host; it has
// a slot for each rank of the job.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_page.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/status.h"

namespace lockstep {

class RankPages {
 public:
  // Makes the agent's own page. Errors: system.
  RankPages(int local_ranks, const Round& round);

  int own_descriptor() const { return own_.descriptor(); }

  // Uses the session page behind `fd`, if it is of this job. Errors: those of JobPage::attach().
  void use_session_page(FileDescriptor fd);

  // The page in use, and where a rank is on it.
  const JobPage& page() const { return session_ ? *session_ : own_; }
  int slot(int local_rank) const { return session_ ? number(local_rank) : local_rank; }

  // Rank in the job.
  int number(int local_rank) const { return first_rank_ + local_rank; }

  JobPage::Phase phase(int local_rank) const { return page().phase(slot(local_rank)); }

  // True if the rank watches the page, or has just stopped doing so because of an exception.
  bool is_attached(int local_rank) const;

  // Pid of the process that joined the group, which may be a child of the one that we started.
  pid_t pid(int local_rank) const { return page().pid(slot(local_rank)); }
  bool expects_preemption(int local_rank) const;

  // Last activity of a rank whose process was `pid`; the caller adds how it ended.
  Failure examine(int local_rank, pid_t pid) const;

  // Reports the cause of the rank's end to all ranks.
  void report_end(int local_rank, const Failure& end) const;

  RankStatus status(int local_rank) const;

 private:
  const int first_rank_;
  const int world_size_;
  JobPage own_;
  std::optional<JobPage> session_;
};

}  // namespace lockstep
