// The training of a simulated process. Its state is a hash of all steps.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/comm/elastic_runtime.h"
#include "lockstep/comm/elastic_steps.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/simulated_group.h"
#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

// Time, fibers, signals and groups of one process.
class SimulatedRuntime final : public comm::ElasticRuntime {
 public:
  SimulatedRuntime(Simulation& simulation, SharedGroups& groups, Process& process)
      : simulation_(simulation), groups_(groups), process_(process) {}

  Clock::time_point now() override { return simulation_.now(); }
  void sleep_for(std::chrono::milliseconds time) override { simulation_.sleep(time); }
  std::function<void()> start(std::function<void()> body) override;
  ProcessGroup make_group(const InitOptions& options,
                          std::chrono::milliseconds call_timeout) override {
    return groups_.make(process_, options, call_timeout);
  }
  void keep_preemption_signals() override {}
  bool preemption_signalled() override { return process_.is_told_to_leave; }

 private:
  Simulation& simulation_;
  SharedGroups& groups_;
  Process& process_;
};

class Training final : public TrainingObjects {
 public:
  Training(Simulation& simulation, SharedGroups& groups, Checker& checker, Process& process,
           std::chrono::milliseconds longest_compute, bool loses_a_step)
      : simulation_(simulation),
        groups_(groups),
        checker_(checker),
        process_(process),
        longest_compute_(longest_compute),
        loses_a_step_(loses_a_step) {}

  void copy() override { copied_draws_ = draws_; }
  void make(ProcessGroup& group, bool restores) override;
  void require_whole(ProcessGroup& group) override;
  void send(ProcessGroup& group, int to) override;
  void receive(ProcessGroup& group, int from) override;

  void compute();
  void apply();

  std::int64_t steps() const { return steps_; }

 private:
  void all_reduce(std::int64_t* values, std::size_t count, const char* label);
  void check_former_ranks(const ProcessGroup& group, const SharedGroup& shared);

  Simulation& simulation_;
  SharedGroups& groups_;
  Checker& checker_;
  Process& process_;
  const std::chrono::milliseconds longest_compute_;
  const bool loses_a_step_;  // Mutant::state_is_old.
  ProcessGroup* group_ = nullptr;
  std::optional<ProcessGroup> before_;  // The latest group, perhaps left, and its members.
  std::vector<Process*> members_before_;
  std::int64_t steps_ = 0;
  std::uint64_t hash_ = 1;
  std::int64_t draws_ = 0;  // A random number generator, which compute() changes.
  std::int64_t copied_draws_ = 0;
  std::int64_t gradient_ = 0;
};

}  // namespace lockstep::simulation
