// Measures how the start and the changes of a job grow with its hosts, on virtual time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/scale/costs.h"
#include "tests/simulation/scale/server.h"

namespace lockstep::simulation {

struct ScaleOptions {
  int hosts = 8;
  int ranks = 8;  // On each host.
  // Virtual time after which an event counts as failed.
  std::chrono::seconds limit{60};
  Costs costs = {};
};

struct ScaleEvent {
  std::string name;
  std::optional<double> seconds;  // Virtual; empty if it did not end within the limit.
  Traffic traffic = {};           // At the coordinator's host.
  int connections = 0;            // The same: the most until then.
  double real_seconds = 0;        // The simulation's.
  std::string note = {};          // Why it failed.
};

// The hosts that are lost at once: a fortieth, and at least one; none of a single host.
int hosts_of_rack(int hosts);

// The launchers start, lose a rank and restart, lose a rack and continue without it, and let it
// join again.
std::vector<ScaleEvent> measure_launchers(const ScaleOptions& options);

// All ranks connect to the store, and exchange a word and a table.
std::vector<ScaleEvent> measure_ranks(const ScaleOptions& options);

// Survivors continue without a rack, and with its replacements. Empty for one host.
std::vector<ScaleEvent> measure_survivors(const ScaleOptions& options);

// The start of launchers and of ranks, and a death, with a tree of agents that does not exist yet.
// About the square root of the hosts relay for as many others, and each agent for its ranks. A time
// is the sum of those of the levels, each of which is simulated as a job. Frames that combine hosts
// or ranks have the size of one. Empty for fewer than four hosts.
std::vector<ScaleEvent> predict_tree(const ScaleOptions& options);

// As bench_rendezvous: all hosts and ranks on one machine with `cores`. Returns the milliseconds
// until the hosts have started, and until the ranks have the word.
std::pair<double, double> predict_rendezvous(const ScaleOptions& options, int cores);

}  // namespace lockstep::simulation
