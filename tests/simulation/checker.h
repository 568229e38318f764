// The invariants of a run. It sees all processes and the store at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/elastic_decision.h"
#include "tests/simulation/simulated_group.h"
#include "tests/simulation/simulated_store.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/violation.h"

namespace lockstep::simulation {

class Checker {
 public:
  Checker(Simulation& simulation, const SimulatedServer& server)
      : simulation_(simulation), server_(server), violation_(simulation) {}

  const std::optional<Violation>& violation() const { return violation_.found(); }
  void report(std::string_view rule, const std::string& text) { violation_.report(rule, text); }

  // --- Events

  void store_changed(const Process& by, const job::StoreRequest& request);
  void made_group(const Process& process, const SharedGroup& group, int rank, int generation);

  // `hash`: of all steps so far.
  void computes(const Process& process, std::int64_t step, std::uint64_t hash);
  void applies(const Process& process, std::int64_t step, std::int64_t gradient);
  void ended(const Process& process);

  // `process` has been idle for `rest`. If it is rank 0, it has erased the entries that no rank
  // needs. Processes of the set have had a fault, and may have written others later.
  void check_keys(const Process& process, Duration rest, const std::set<int>& touched);

  // A fault delays what the process does, or ends its connection to the store.
  void note_hindered(const Process& process) { hindered_.insert(process.id); }

  // --- Facts

  const std::map<int, comm::Decision>& decisions() const { return decisions_; }
  std::int64_t applications() const { return applications_; }

 private:
  void decided(const comm::Decision& decision);
  void check_loss_of_state(const comm::Decision& last);
  bool is_needed(std::string_view key, const std::string& value) const;
  bool is_member(const Process& process, const comm::Decision& decision) const;

  Simulation& simulation_;
  const SimulatedServer& server_;
  FirstViolation violation_;
  std::map<int, comm::Decision> decisions_;
  std::map<int, Time> decided_at_;
  std::map<int, std::vector<Process*>> groups_;                       // By generation.
  std::map<std::int64_t, std::int64_t> gradients_;                    // By step.
  std::map<std::int64_t, std::uint64_t> hashes_;                      // By the number of steps.
  std::map<int, std::int64_t> applied_;                               // Steps, by process.
  std::map<std::string, std::pair<Time, int>, std::less<>> written_;  // By key: when and by whom.
  std::set<int> hindered_;
  std::int64_t applications_ = 0;
};

}  // namespace lockstep::simulation
