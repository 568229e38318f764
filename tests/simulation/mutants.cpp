// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/mutants.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/elastic_decision.h"

namespace lockstep::simulation {
namespace {

using Ask = job::StoreRequest::Kind;

bool is_entry(std::string_view key, std::string_view name) {
  const auto entry = entry_in(key);
  return entry && entry->starts_with(name);
}

std::size_t sum_of(std::string_view text) {
  std::size_t sum = 0;
  for (const char c : text) sum = sum * 31 + static_cast<unsigned char>(c);
  return sum;
}

}  // namespace

std::optional<std::string_view> entry_in(std::string_view key) {
  if (!key.starts_with(prefix_of_entries)) return std::nullopt;
  return key.substr(prefix_of_entries.size());
}

const std::vector<NamedMutant>& mutants() {
  static const std::vector<NamedMutant> all{
      {"compare_set_always_succeeds", Mutant::compare_set_always_succeeds},
      {"vote_is_lost", Mutant::vote_is_lost},
      {"most_prepared", Mutant::most_prepared},
      {"members_out_of_order", Mutant::members_out_of_order},
      {"newest_is_erased", Mutant::newest_is_erased},
      {"nothing_is_erased", Mutant::nothing_is_erased},
      {"rank_does_not_wait", Mutant::rank_does_not_wait},
      {"state_is_old", Mutant::state_is_old},
      {"arrivals_are_forgotten", Mutant::arrivals_are_forgotten},
  };
  return all;
}

std::optional<Mutant> mutant_named(std::string_view name) {
  for (const NamedMutant& named : mutants())
    if (named.name == name) return named.mutant;
  return std::nullopt;
}

bool is_dropped(Mutant mutant, const job::StoreRequest& request) {
  if (mutant == Mutant::nothing_is_erased) return request.kind == Ask::erase;
  return mutant == Mutant::vote_is_lost && request.kind == Ask::set &&
         is_entry(request.key, "vote/") && sum_of(request.key) % 5 == 0;
}

std::string stored_value(Mutant mutant, const job::StoreRequest& request,
                         const job::StoreTable& table) {
  std::string text(request.value);
  if (!is_entry(request.key, "newest")) return text;
  comm::Decision decision = comm::decode_decision(text);
  if (mutant == Mutant::arrivals_are_forgotten) decision.arrivals = 0;
  if (mutant == Mutant::most_prepared) {
    for (int i = 0; i < decision.holders; ++i) {
      const auto& seat = decision.members[static_cast<std::size_t>(i)];
      const job::StoreTable::Value vote = table.find(
          fmt::format("{}vote/{}/{}", prefix_of_entries, decision.generation, comm::text_of(seat)));
      if (vote == nullptr) continue;
      const auto progress = comm::decode_vote(*vote).progress;
      if (progress) decision.completed = std::max(decision.completed, progress->prepared);
    }
  }
  return encode(decision);
}

std::string read_value(Mutant mutant, int process, std::string_view key, std::string value) {
  if (mutant != Mutant::members_out_of_order || process % 2 == 0) return value;
  if (!is_entry(key, "newest") && !is_entry(key, "decision/")) return value;
  comm::Decision decision = comm::decode_decision(value);
  if (decision.holders >= 2) std::swap(decision.members[0], decision.members[1]);
  return encode(decision);
}

}  // namespace lockstep::simulation
