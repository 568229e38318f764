// The entries of an elastic group in the job's store: docs/internals/survival.md.
//
// Thread safety: any thread. Blocking, Errors: as Store.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/elastic_decision.h"
#include "lockstep/comm/elastic_runtime.h"
#include "lockstep/job/store/store.h"

namespace lockstep::comm {

class ElasticEntries {
 public:
  // `runtime` must outlive it.
  ElasticEntries(std::shared_ptr<Store> job, int attempt,
                 ElasticRuntime& runtime = elastic_runtime());

  const std::shared_ptr<Store>& job() const { return job_; }
  ElasticRuntime& runtime() const { return runtime_; }

  // --- Processes

  // `seat` is the newest process in its place.
  void enter(const Seat& seat);

  // The process takes part in no later generation: no rank waits for it.
  void end(const Seat& seat);

  // Whether the process has called end() or has a successor.
  bool has_ended(const Seat& seat);

  // The newest process's.
  int incarnation(int rank);

  // --- Votes and decisions

  void vote(int generation, const Seat& seat, const Vote& vote);
  std::optional<Vote> find_vote(int generation, const Seat& seat);
  void erase_vote(int generation, const Seat& seat);

  // Call it when the process is no member of `generation`: erases its vote and, for the generation
  // before, its keys and give_up().
  void withdraw(int generation, const Seat& seat);

  // Empty before the first one.
  std::optional<Decision> newest();

  // Waits for the decision of `generation`. At `limit`: newest() if it is not earlier, or empty.
  std::optional<Decision> find_decision(int generation, std::chrono::milliseconds limit);

  // Decides on the generation after `last`, unless decided. Before the first one, `last` has a
  // negative generation.
  void propose(const Decision& last, const Decision& next);

  // A member will not make the group of `generation`: the others need not wait for it.
  void give_up(int generation);
  bool is_given_up(int generation);

  // --- Processes that join

  // Returns its number.
  std::int64_t arrive(const Seat& seat);
  std::optional<Seat> arrival(std::int64_t number);
  // Whether it is the newest process in its place, and has not ended.
  bool waits(const Seat& seat);
  void invite(const Seat& seat, int generation);
  int invitation(const Seat& seat);  // 0 if there is none.

  void beat(const std::string& value);  // A sign of life: a new value.
  std::optional<std::string> heartbeat();
  void finish();
  bool is_finished();

  // --- Entries that no rank needs any more

  // Notes the keys that the process has written in the job's store for the group of `generation`.
  void note_keys(int generation, const Seat& seat, const std::set<std::string>& keys);

  // Call it when the group of `current` exists: erases earlier generations' entries, votes for
  // `current` and arrivals that it counts. If interrupted, the next call continues.
  void erase_before(const Decision& current, const std::function<bool()>& is_interrupted);

 private:
  std::vector<Decision> known_until(const Decision& current);
  void erase_keys(int generation, const Seat& seat);
  std::vector<Seat> erase_arrivals(std::int64_t after, std::int64_t last);

  const std::shared_ptr<Store> job_;
  PrefixStore store_;
  ElasticRuntime& runtime_;
};

}  // namespace lockstep::comm
