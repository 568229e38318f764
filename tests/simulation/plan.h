// The job that a seed draws, and the faults that happen to it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::simulation {

enum class FaultKind {
  kill,
  stop,                   // And continue, after `length`.
  leave,                  // SIGTERM.
  slow_process,           // From then on.
  kill_host,              // All its processes at once.
  cut_to_store,           // Requests of a host wait for the end of the cut.
  cut_from_store,         // Replies do.
  cut_store,              // Both.
  slow_link,              // A host's to the store.
  lose_store_connection,  // A process's.
  lose_peer_connection,   // Between two processes on different hosts.
  end_store,
};

// Whether its target is a host.
bool is_of_host(FaultKind kind);

// A fault, its process or host, and its time.
struct PlannedFault {
  FaultKind kind = FaultKind::kill;
  int target = 0;  // A rank of the launcher, or a host.
  int other = 0;   // For lose_peer_connection.
  std::chrono::milliseconds length{0};

  // At a virtual time, or at the target's `count`th call of `call` with a key that begins with
  // `key`. For a host or the store: of any process.
  bool is_timed = true;
  std::chrono::milliseconds time{0};
  std::string_view call = {};
  std::string_view key = {};
  int count = 0;
  std::chrono::microseconds delay{0};  // After that call began.
};

std::string describe(const PlannedFault& fault);

struct Plan {
  std::uint64_t seed = 0;
  int processes = 3;
  int hosts = 1;
  int steps = 10;
  int least = 1;
  std::chrono::milliseconds patience{2000};
  std::chrono::milliseconds timeout{20'000};
  std::chrono::milliseconds longest_compute{20};
  int most_restarts = 1;  // Per rank.
  std::chrono::milliseconds longest_restart{500};
  std::vector<PlannedFault> faults = {};
};

std::string describe(const Plan& plan);

// `processes`: otherwise the seed draws their number.
Plan draw_plan(std::uint64_t seed, std::optional<int> processes);

}  // namespace lockstep::simulation
