// This process's part in a job on this host: its line to the switchboard, its slot in the job
// page and the sentinel thread that holds it. It exists once per process.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/sentinel.h"
#include "lockstep/job/switchboard.h"

namespace lockstep {

// Who the processes of a session are and how they find each other: through the agent that started
// all of them, or on the abstract Unix socket named by `identity`, which one of them opens.
struct LOCKSTEP_API HostMeeting {
  int rank = 0;  // This process's slot in the job page.
  int size = 1;
  std::string job_id = {};           // For people.
  JobPage::Told told = {};           // Announced to the others; not when `meeting` is 0.
  std::optional<int> agent_fd = {};  // Our end of the agent's socket pair; else
  std::string identity = {};         // what nobody but a process of this session says.
  bool opens = false;                // Whether this is who opens it,
  bool is_alone = false;             // and nobody else will come.

  static HostMeeting through_agent(const LaunchEnvironment& who);

  // `name` tells this session from an earlier one of the same job, which a slower rank may still
  // be leaving. `secret`, when not empty, stands for the job's id, which others could guess.
  // Errors: misuse when together they are too long.
  static HostMeeting on_socket(const LaunchEnvironment& who, std::string_view name,
                               std::string_view secret = {});
};

class LOCKSTEP_API HostSession {
 public:
  // Returns when this rank has its slot; others may still be on their way. Errors: timeout when
  // rank 0 does not come; mismatch when there is no slot for this rank, and when the launcher says
  // another number of ranks, unless `told` is announced; misuse for a rank that is there already.
  HostSession(const HostMeeting& meeting, Deadline deadline);

  // Leaves the job page: in order after finish(), as one who abandons the job without it.
  ~HostSession();

  int rank() const { return rank_; }
  int meeting() const { return meeting_; }  // HostMeeting::told's.
  int size() const { return page_->slots(); }
  HostLink& link() { return *link_; }
  JobPage& page() { return *page_; }

  // The page, for whoever must still reach it when this session is over.
  std::shared_ptr<const JobPage> shared_page() const { return page_; }

  // Throws Error(peer_lost) when a rank of this host was lost; `context` begins its message. Costs
  // about 20 ns a rank: for the slow path of a wait, not for a spin. The failure record is logged,
  // once, by whoever notices first: this, or the sentinel while nobody waits.
  void throw_if_peer_lost(std::string_view context) const;

  // Notes in the job page that living ranks have broken a group of this process, and logs it. If
  // another process detected it, what that one has noted counts.
  void note_break(Failure failure);

  // The group was destroyed by all: leaving is not a failure any more.
  void finish() { sentinel_->leave_as(JobPage::Phase::finished); }

  // This process meets its peers elsewhere: its slot becomes what it was before.
  void withdraw() { sentinel_->leave_as(JobPage::Phase::vacant); }

  // This rank goes on without its group: its peers' calls fail from now on.
  void abandon() { page_->abandon(rank_); }

 private:
  std::optional<Failure> find_failure() const;
  void look() noexcept;
  bool is_logged(const Failure& failure) const;
  void log_once(const Failure& failure) const;
  Failure examine(int peer) const;
  std::optional<Failure> recorded_failure() const;
  void open_switchboard(const HostMeeting& meeting);

  const int rank_;
  const int meeting_;
  std::shared_ptr<JobPage> page_;
  std::unique_ptr<Switchboard> switchboard_;  // In rank 0 when no agent started the job.
  std::unique_ptr<HostLink> link_;
  mutable std::mutex logged_mutex_;
  mutable std::set<std::string> logged_;  // Of which failures the record has been.
  std::atomic<bool> is_speaking_{false};
  Thread speaker_;                      // Logs for the sentinel, which must not wait for a sink.
  std::unique_ptr<Sentinel> sentinel_;  // Last, so that its thread ends before what it uses.
};

}  // namespace lockstep
