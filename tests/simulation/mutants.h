// Planted defects: the simulation must find each of them. Production code is unchanged: they change
// what the store, the network or a training does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_service.h"

namespace lockstep::simulation {

// Begins the keys of ElasticEntries.
constexpr std::string_view prefix_of_entries = "lockstep/elastic/0/";

// The key without the prefix; nothing for a key that is not of ElasticEntries.
std::optional<std::string_view> entry_in(std::string_view key);

enum class Mutant {
  none,
  compare_set_always_succeeds,  // Several proposals count.
  vote_is_lost,                 // The server confirms every fifth vote, and forgets it.
  most_prepared,                // A decision has the most that a rank has prepared.
  members_out_of_order,         // Some processes exchange the first two ranks.
  newest_is_erased,             // With the copy of an old decision, the newest one is erased.
  nothing_is_erased,            // The server confirms erasures, and keeps the entries.
  rank_does_not_wait,           // Rank 1 leaves a collective before all have entered it.
  state_is_old,                 // A process that joins gets a wrong state.
  arrivals_are_forgotten,       // A decision does not count the processes that asked to join.
};

struct NamedMutant {
  std::string_view name;
  Mutant mutant;
};
const std::vector<NamedMutant>& mutants();
std::optional<Mutant> mutant_named(std::string_view name);

// Whether the server confirms the request without executing it.
bool is_dropped(Mutant mutant, const job::StoreRequest& request);

// The value that the server stores for compare_set().
std::string stored_value(Mutant mutant, const job::StoreRequest& request,
                         const job::StoreTable& table);

// The value that a process reads instead of `value`.
std::string read_value(Mutant mutant, int process, std::string_view key, std::string value);

}  // namespace lockstep::simulation
