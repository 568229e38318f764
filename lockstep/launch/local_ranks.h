// The ranks of one attempt on this host.
//
// It starts them, hands them the job page and each other's descriptors, learns how each one ends,
// and ends those that are left.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: the constructor blocks until every program runs; the other members never block.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/store/job_token.h"
#include "lockstep/job/switchboard.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"
#include "lockstep/launch/status.h"

namespace lockstep {

class LocalRanks {
 public:
  // `options`, `binding` and `output` must outlive it. Errors: system.
  LocalRanks(const RunOptions& options, const Round& round, const BindingPlan& binding,
             const std::optional<JobToken>& token, Output& output);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  const Round& round() const { return round_; }

  // Exit code of the job if the program could not be started; else 0.
  int start_error() const { return start_error_; }

  // Adds the descriptors that poll() has to watch, then acts on its result.
  void watch(std::vector<pollfd>& entries) const { switchboard_.watch(entries); }
  void serve(const std::vector<pollfd>& entries);

  // Time at which act_on_deadlines() must be called.
  Deadline deadline() const;
  void act_on_deadlines();

  // Records processes that have ended, and reaps those that are not ranks.
  void reap();

  // Passes a signal on to the ranks that are prepared for it. Returns false when there are none.
  bool pass_on(int signal);

  // True if all running ranks take SIGTERM as a notice: ProcessGroup::on_preemption().
  bool expect_preemption() const;

  // First failure of this attempt: of a rank of this host, or of another host's rank that this
  // host's ranks have noticed. More may become known of it until the last rank has ended.
  const std::optional<Failure>& first_failure() const { return first_; }

  // Time from its first notice by any process to its notice by this agent.
  std::chrono::milliseconds noticed_after() const { return noticed_after_; }

  // Exit code of the launcher because of the first failure; 0 without one.
  int exit_code() const;

  // Ranks of this host, by their rank in the job, that failed by themselves after the first one.
  std::vector<int> also_failed() const;
  bool was_attached(const Failure& failure) const;

  // `number` is a rank of the job.
  bool is_local(int number) const;

  // Ends the ranks because one failed, here or on another host. They get the chance to throw an
  // Error that names it.
  void end_after(const Failure& failure);

  // Sends `signal`, then SIGKILL to the ranks that are left after `patience`.
  void end(int signal, std::chrono::milliseconds patience);

  void kill_all();

  bool ending() const { return ending_; }

  // True if no rank runs, but processes in their process groups do. These get some time to end,
  // too.
  bool lingering() const;
  int running() const { return running_; }

  // Outcome of the attempt. To be called once no rank is running.
  Outcome outcome() const;

  std::vector<RankStatus> status() const;

 private:
  struct Rank {
    pid_t pid = 0;
    ErrorFile error_file;
    bool ended = false;
    bool failed = false;
    bool preempted = false;
    bool told = false;  // We sent it a signal to end.
  };

  void wait_for(std::deque<Process>& starting);
  Process start_rank(int local_rank, int open_files);
  void say_where(int local_rank, pid_t pid) const;

  // Page on which the ranks report their activity. It is our own, indexed by local rank, or that of
  // a group shared with another agent's ranks on this host, indexed by rank.
  const JobPage& page() const { return session_page_ ? *session_page_ : page_; }
  int slot(int local_rank) const { return session_page_ ? number(local_rank) : local_rank; }
  int number(int local_rank) const { return round_.first_rank + local_rank; }
  int local_rank(int number) const { return number - round_.first_rank; }
  Failure examine(int local_rank) const;
  void on_end(int local_rank, const siginfo_t& end);
  void on_failure(int local_rank, const Failure& failure);
  bool attached(int local_rank) const;
  void tell(Rank& rank, int signal);
  std::vector<int> left() const;  // Local ranks that run.
  std::string names_of_left() const;

  const RunOptions& options_;
  const Round round_;
  const BindingPlan& binding_;
  Output& output_;
  JobPage page_;
  std::optional<JobPage> session_page_;
  Switchboard switchboard_;
  std::vector<Rank> ranks_;
  int running_ = 0;
  int start_error_ = 0;

  bool ending_ = false;
  std::optional<Failure> first_;
  std::chrono::milliseconds noticed_after_{0};
  int code_of_first_end_ = 0;  // Code of the first rank that was seen to fail.
  std::chrono::milliseconds patience_;
  Deadline terminate_at_ = no_deadline;
  Deadline kill_at_ = no_deadline;
  Deadline give_up_at_ = no_deadline;
};

}  // namespace lockstep
