// Decides for all hosts of a job when their ranks start, end and restart. Does no I/O and reads no
// clock. The caller chooses the hosts' ids; 0 is the coordinating agent's.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

// Pause before a restart: see RunOptions::max_restart_delay.
class RestartBackoff {
 public:
  explicit RestartBackoff(std::chrono::milliseconds longest) : longest_(longest) {}

  // After an attempt that failed after `lived`.
  std::chrono::milliseconds after(Clock::duration lived) {
    if (lived >= longest_) next_ = none;
    return std::exchange(next_, std::clamp(2 * next_, std::min(shortest, longest_), longest_));
  }

 private:
  static constexpr std::chrono::milliseconds none{0};
  static constexpr std::chrono::milliseconds shortest{100};

  const std::chrono::milliseconds longest_;
  std::chrono::milliseconds next_ = none;
};

// Between two times at which the hosts get their states: none for few hosts. A message to each host
// for each arrival would grow with the square of the hosts.
std::chrono::milliseconds pause_between_states(std::size_t hosts);

class Coordinator {
 public:
  using Id = int;
  using Time = Clock::time_point;

  struct Rules {
    std::string job_id;
    Hosts hosts;
    int max_restarts = 0;
    std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);
    // OnFailure::continue_without: a host that is lost, leaves or fails does not end the others. A
    // host fails when its last rank ends and none succeeded or was preempted. If no host succeeds
    // or is preempted, the attempt fails.
    bool survives = false;
  };
  struct JoiningNode {
    std::string host;
    int nproc = 1;
    std::optional<int> node_rank = {};  // Set if its user chose it.
    int least = 1;                      // As its user gave them.
    int most = 1;
  };

  Coordinator(const Rules& rules, Time now);

  // Returns why the host is refused; empty if it has joined.
  std::optional<std::string> join(Id id, const JoiningNode& node, Time now);

  // Ignores reports about an earlier attempt, unless the host stops or leaves.
  void report(Id id, int attempt, Outcome outcome, int exit_code,
              const std::optional<Failure>& failure, Time now);
  void all_gone(Id id, int attempt, Time now);

  // The connection ended, or the host stopped responding.
  void lost(Id id, Time now);

  // Call it at deadline().
  void tick(Time now);
  Deadline deadline() const;

  // The ranks' master address, port and store are not set.
  std::vector<std::pair<Id, Order>> take_orders();

  // True once the next take_orders() returns the last orders.
  bool over() const { return phase_ == Phase::over; }

  // Hosts of this attempt.
  int taking_part() const;

  // `hosts` is taking_part(), which a caller counts once for all hosts.
  std::string state(Id id, int hosts) const;
  std::string state(Id id) const { return state(id, taking_part()); }

 private:
  enum class Phase { gathering, pausing, running, ending, over };
  enum class Part { waiting, running, succeeded, preempted, leaving, failed };
  struct Member {
    JoiningNode said;
    int arrival = 0;
    int number = -1;  // In the latest attempt, or -1.
    Part part = Part::waiting;
    bool gone = true;   // No rank of this attempt is left on that host.
    int exit_code = 0;  // If it leaves.
  };
  using Entry = std::pair<const Id, Member>;

  struct Verdict {
    bool restart = false;
    bool counts = false;  // Against max_restarts.
    std::chrono::milliseconds delay{0};
    EndJob end = {};
  };

  void gather(Time now);
  void start_if_complete(Time now);
  void start_after_pause(Time now);
  void start(Time now);
  static std::vector<Entry*> seat(const std::vector<Entry*>& chosen);
  void end_ranks(const Verdict& verdict, const std::string& why,
                 const std::optional<Failure>& failure, Time now);
  void settle(Time now);
  void fail(Member* member, const Verdict& verdict, const std::optional<Failure>& failure,
            Time now);
  void conclude(Time now);
  void finish(const EndJob& end);
  void learn_more(int exit_code, const std::optional<Failure>& failure);
  void stop(const std::string& why, const Verdict& verdict, Time now);
  void order(Id id, Order what) { orders_.emplace_back(id, std::move(what)); }
  bool enough() const { return static_cast<int>(members_.size()) >= rules_.hosts.least; }
  std::string missing() const;

  const Rules rules_;
  Phase phase_ = Phase::gathering;
  std::map<Id, Member> members_;
  Verdict verdict_;  // While `ending`, and in the pause afterwards.
  RestartBackoff backoff_;
  Time started_at_ = {};
  Time not_before_ = {};
  Time gathering_since_;
  Time last_arrival_;
  int arrivals_ = 0;
  int attempt_ = -1;
  int restarts_ = 0;
  bool anyone_is_done_ = false;  // Includes hosts that have left since.
  bool anyone_succeeded_ = false;
  std::optional<Verdict> survived_;  // This attempt's first failure that ended no other host.
  bool anyone_was_preempted_ = false;
  std::vector<std::pair<Id, Order>> orders_;
};

}  // namespace lockstep::launch
