// Survival's agreement among all ranks of many hosts.
//
// A rank asks the store what ElasticGroup (comm/elastic_group.cpp) would ask, in the same order,
// and uses its frames and its decide(). It is no ElasticGroup, because each of these has memory for
// all ranks. compare_survivors.cpp compares it with ElasticGroups.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/elastic_decision.h"
#include "tests/simulation/scale/store_host.h"

namespace lockstep::simulation {

class Survivors {
 public:
  // Ranks 0 to `ranks` - 1 are connected to the store; rank r is its client r.
  Survivors(StoreHost& store, Simulation& simulation, int ranks);

  // All ranks have made the first group.
  void assume_group();

  // These ranks die, the others know it at once and agree to continue. Needs rank 0.
  void lose(int first, int n);

  // New processes in the place of these ranks join. They are connected as clients.
  void join(int first, int n);

  // Again, for those that came too late for the last decision.
  void admit_more();
  int waiting() const { return waiting_; }

  // Virtual time at which the last living rank had the latest decision.
  std::optional<Time> agreed() const { return left_ == 0 ? std::optional(last_) : std::nullopt; }
  const comm::Decision& decision() const { return decision_; }

  std::chrono::milliseconds patience{30'000};

 private:
  struct Rank {
    Seat seat = {};
    bool lives = true;
    int invited_in = 0;
    std::map<Seat, comm::Vote> votes = {};  // As it has read them.
    std::int64_t looks = 0;
  };
  using Value = std::shared_ptr<const std::string>;

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool proposes(int rank) const;
  void vote(int rank);
  void look(int rank);
  void await_decision(int rank, bool may_propose);
  void read_votes(int rank, std::size_t next);
  void check_votes(int rank, std::size_t next);
  void read_arrival(int rank, std::int64_t number, std::vector<Seat> invited);
  void read_invited(int rank, std::int64_t arrivals, std::vector<Seat> invited, std::size_t next,
                    Time deadline);
  void propose(int rank, std::int64_t arrivals);
  void finish(int rank, const Value& decision);

  void watch(int rank);
  void enter(int rank);
  void arrive(int rank, std::int64_t number);
  void await_invitation(int rank);
  void await_admission(int rank, int generation);

  void ask(int rank, job::StoreRequest::Kind kind, const std::string& key, const std::string& value,
           const std::string& expected, StoreHost::Then then);
  void find(int rank, const std::string& key, std::function<void(const Value&)> then);
  void set(int rank, const std::string& key, const std::string& value, std::function<void()> then);

  StoreHost& store_;
  Simulation& simulation_;
  std::vector<Rank> ranks_;
  comm::Decision decision_;  // The latest.
  std::string encoded_;      // The same.
  comm::Decision next_;      // Decided, and not yet read by all.
  int first_ = 0;            // The first living rank.
  bool is_watching_ = false;
  int waiting_ = 0;  // Processes that wait to join.
  int left_ = 0;     // Ranks that do not have the next decision yet.
  Time last_ = {};
  Time late_at_ = {};
  std::map<int, bool> has_decided_;  // By rank, in this agreement.
};

}  // namespace lockstep::simulation
