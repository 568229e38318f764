// Decides for all hosts of a job when their ranks start, end, and start anew.
//
// It is told what happens, and when; what is to be done then lies in take_orders(). Hosts are known
// by an id that its user chooses: 0 is the host of the coordinating agent itself.
//
// No I/O and no clock here.
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/restart_backoff.h"

namespace lockstep {

class Coordinator {
 public:
  using Id = int;
  using Time = Clock::time_point;

  struct Rules {
    std::string job_id;
    Hosts hosts;
    int max_restarts = 0;
    std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);
  };
  struct Newcomer {
    std::string host;  // For people.
    int nproc = 1;
    std::optional<int> node_rank = {};  // Fixed by its user.
    int least = 1;                      // What its user said of the job.
    int most = 1;
  };

  // The waiting begins at `now`.
  Coordinator(const Rules& rules, Time now);

  // Why the host cannot be of this job; nothing when it is now.
  std::optional<std::string> join(Id id, const Newcomer& newcomer, Time now);

  // What a host says. Of an attempt that is over, it no longer counts.
  void report(Id id, int attempt, Outcome outcome, int exit_code,
              const std::optional<Failure>& failure, Time now);
  void all_gone(Id id, int attempt, Time now);

  // The host says nothing any more: its connection ended, or it did not answer.
  void lost(Id id, Time now);

  // To be called at deadline().
  void tick(Time now);
  Deadline deadline() const;

  // For whom, and what, in the order in which it was decided. Where its ranks meet is not filled
  // in.
  std::vector<std::pair<Id, Order>> take_orders();

  // The job has ended: there are no more orders once they are taken.
  bool over() const { return phase_ == Phase::over; }

  std::string state(Id id) const;  // Of that host, for people.

 private:
  enum class Phase { gathering, pausing, running, ending, over };
  enum class Part { waiting, running, succeeded, preempted, leaving };
  struct Member {
    Newcomer said;
    int arrival = 0;
    int number = -1;  // In this attempt, or the last one it was in; -1 before.
    Part part = Part::waiting;
    bool gone = true;   // No rank of this attempt is left there.
    int exit_code = 0;  // Of a host that leaves.
  };
  using Entry = std::pair<const Id, Member>;

  // How the job ends when it is not started anew.
  struct Verdict {
    bool restart = false;                // It may be started anew,
    bool counts = false;                 // and that is one of the restarts that are allowed,
    std::chrono::milliseconds delay{0};  // after this pause.
    EndJob end = {};
  };

  void gather(Time now);
  void start_if_complete(Time now);
  void start_after_pause(Time now);
  void start(Time now);
  static std::vector<Entry*> seat(const std::vector<Entry*>& chosen);
  void end_ranks(const Verdict& verdict, const std::string& why,
                 const std::optional<Failure>& failure, Time now);
  void settle(Time now);  // After the end of a part of an attempt.
  void finish(const EndJob& end);
  void learn_more(int exit_code, const std::optional<Failure>& failure);
  void stop(const std::string& why, const Verdict& verdict, Time now);
  void order(Id id, Order what) { orders_.emplace_back(id, std::move(what)); }
  int taking_part() const;
  bool enough() const { return static_cast<int>(members_.size()) >= rules_.hosts.least; }
  std::string missing() const;

  const Rules rules_;
  Phase phase_ = Phase::gathering;
  std::map<Id, Member> members_;
  Verdict verdict_;  // While ending, and in the pause after it.
  RestartBackoff backoff_;
  Time started_at_ = {};  // The latest attempt.
  Time not_before_ = {};  // The next one.
  Time gathering_since_;
  Time last_arrival_;
  int arrivals_ = 0;
  int attempt_ = -1;
  int restarts_ = 0;
  bool anyone_is_done_ = false;  // In this attempt; a host that has left since counts, too.
  bool anyone_made_room_ = false;
  std::vector<std::pair<Id, Order>> orders_;
};

}  // namespace lockstep
