// A run of the launcher's Coordinator: agents that join, start and end ranks as it orders, fail,
// leave and are lost.
//
// Agents are state machines with the rules of launch/agent.cpp. Their messages arrive in order.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/coordinator.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/violation.h"

namespace lockstep::simulation {

struct LauncherResult {
  std::optional<Violation> violation;
  std::uint64_t events = 0;
  int attempts = 0;
  int orders = 0;
  bool succeeded = false;
};

// `hosts`: otherwise the seed draws their number. `trace` may be empty.
LauncherResult run_launcher(std::uint64_t seed, std::optional<int> hosts,
                            const Simulation::Trace& trace);

class LauncherJob {
 public:
  LauncherJob(std::uint64_t seed, std::optional<int> hosts, const Simulation::Trace& trace);

  LauncherResult run();

 private:
  enum class State { absent, waiting, running, ending, concluded, ended, lost };
  struct Agent {
    int id = 0;
    int nproc = 1;
    State state = State::absent;
    int attempt = -1;
    bool has_reported = false;
    bool is_leaving = false;
    int starts = 0;          // Makes events of earlier attempts void.
    Time last_message = {};  // To the coordinator,
    Time last_order = {};    // and from it.
    std::optional<EndJob> end = {};
  };

  static launch::Coordinator::Rules draw_rules(Random& random, int hosts);
  Duration latency() { return std::chrono::microseconds(random_.between(100, 40'000)); }
  bool is_here(const Agent& agent) const {
    return agent.state != State::absent && agent.state != State::lost &&
           agent.state != State::ended;
  }

  void draw_events(Agent& agent);
  void send(Agent& agent, std::function<void()> act);
  void dispatch();
  void check_start(int attempt, const std::vector<std::pair<int, Round>>& rounds);
  void join(Agent& agent);
  void obey(Agent& agent, const Order& order);
  void start(Agent& agent, const Round& round);
  void end_ranks(Agent& agent);
  void conclude(Agent& agent, Outcome outcome);
  void report(Agent& agent, Outcome outcome);
  void stop(Agent& agent, bool leaves);
  void finish(Agent& agent);
  void lose(Agent& agent);
  void check_end();

  Simulation simulation_;
  FirstViolation violation_;
  Random random_;
  const launch::Coordinator::Rules rules_;
  launch::Coordinator coordinator_;
  std::vector<Agent> agents_;
  int attempt_ = -1;
  int counted_ = -1;  // Restarts that count, in the latest attempt.
  int orders_ = 0;
  std::set<int> succeeded_;  // Hosts, in the latest attempt.
  std::set<int> started_;    // The same.
  bool is_expected_to_end_ = false;
};

}  // namespace lockstep::simulation
