// One run: a job of simulated processes that train with ElasticSteps, a launcher that starts lost
// ranks again, and the faults of a plan.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "lockstep/launch/continuation.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/simulated_group.h"
#include "tests/simulation/simulated_store.h"
#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

struct Result {
  std::optional<Violation> violation;
  std::uint64_t events = 0;
  std::uint64_t requests = 0;     // To the store.
  std::int64_t applications = 0;  // All ranks' steps.
  int generations = 0;
  int started = 0;  // Processes.
  int finished = 0;
  int faults = 0;  // That happened.
  double virtual_seconds = 0;
};

// `trace`: may be empty.
Result run(const Plan& plan, Mutant mutant, const Simulation::Trace& trace);

class Job {
 public:
  Job(const Plan& plan, Mutant mutant, const Simulation::Trace& trace);

  Result run();

 private:
  struct Watched {  // A fault that waits for a call.
    PlannedFault fault;
    int calls = 0;
    bool has_happened = false;
  };

  void start(Seat seat, int host);
  void live(Process& process);
  void note_end(Process& process);
  void supervise(int host);
  void note_call(Process& process, std::string_view what, std::string_view key);
  void inject(const PlannedFault& fault);
  void inject_into_host(const PlannedFault& fault);
  void touch(const Process& process) { touched_.insert(process.id); }
  void touch_host(int host);
  void hinder(const Process& process);
  Process* process_of(int rank) const;
  int host_of(int rank) const { return rank / per_host_; }
  int running_on(int host) const;
  void check_progress();
  Time limit() const;

  const Plan plan_;
  const int per_host_;
  const Mutant mutant_;
  Simulation simulation_;
  SimulatedServer server_;
  SharedGroups groups_;
  Checker checker_;
  Random launcher_;
  std::vector<Watched> watched_;
  std::map<int, Process*> latest_;  // By rank.
  std::vector<launch::Continuation> hosts_;
  std::set<int> dead_hosts_;
  std::set<int> touched_;  // Processes that a fault has reached.
  std::set<int> touched_hosts_;
  int faults_ = 0;
  int finished_ = 0;
};

}  // namespace lockstep::simulation
