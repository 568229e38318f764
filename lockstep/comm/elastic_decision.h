// The entries in the store by which an elastic group changes, and pauses between looks at them.
// Does no I/O.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/elastic_group.h"

namespace lockstep::comm {

// A process in its launcher's place, such as "3.1": the second process of rank 3.
struct Seat {
  int rank = 0;
  int incarnation = 0;

  friend auto operator<=>(const Seat&, const Seat&) = default;
};

std::string text_of(const Seat& seat);

// The entry of a process that is ready for the next generation. One that joins has no progress.
struct Vote {
  std::optional<StepProgress> progress = {};
};

std::string encode(const Vote& vote);
Vote decode_vote(std::string_view text);  // Errors: corrupt.

// One generation: its members, in rank order.
struct Decision {
  int generation = -1;
  std::vector<Seat> members = {};
  int holders = 0;             // The first members, which have the state; the others join.
  std::int64_t completed = 0;  // ElasticGroup::Change::completed.
  std::int64_t arrivals = 0;   // Processes that had asked to join; later ones are invited later.
};

std::string encode(const Decision& decision);
Decision decode_decision(std::string_view text);  // Errors: corrupt.

// The generation after `before`: its members that have the state and do not leave, in their order;
// then voters without progress, which join. Without members if nobody has the state.
Decision decide(const Decision& before, const std::map<Seat, Vote>& votes, std::int64_t arrivals);

// Between two looks of a rank that waits for the decision of another one. A decision ends the wait;
// a look detects that this rank is the next to propose. 20 ms, or more in groups of more than 100,
// whose members would keep the store's thread busy; at most 1 s.
std::chrono::milliseconds pause_between_looks(std::size_t members);

// While ranks are expected within milliseconds.
constexpr std::chrono::milliseconds short_pause{1};

// Between two looks for arrivals.
constexpr std::chrono::milliseconds long_pause{20};

// For an invited process to answer.
constexpr std::chrono::milliseconds time_to_answer{500};

// Between two looks of a process for its invitation: shorter than `time_to_answer`.
std::chrono::milliseconds pause_before_invitation(std::size_t members);

std::optional<int> place_of(const Seat& seat, const std::vector<Seat>& members);

}  // namespace lockstep::comm
