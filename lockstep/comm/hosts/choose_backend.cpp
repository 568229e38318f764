// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/choose_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/engine.h"

namespace lockstep {
namespace {

constexpr std::string_view prefix = "shm+";
constexpr std::string_view between_hosts[] = {"mpi", "gloo", "oneccl"};

bool is_auto(std::string_view backend) { return backend.empty() || backend == "auto"; }

std::vector<int> places_of(const std::vector<RankCard>& cards) {
  std::vector<int> places;
  for (const RankCard& card : cards) {
    const auto first = std::find_if(cards.begin(), cards.end(),
                                    [&](const RankCard& one) { return one.place == card.place; });
    places.push_back(static_cast<int>(first - cards.begin()));
  }
  return places;
}

// Returns why some rank cannot use the engine; empty when all can.
std::string why_not(const std::vector<RankCard>& cards, const std::string& engine) {
  for (const RankCard& card : cards) {
    const auto found = card.engines.find(engine);
    if (found == card.engines.end())
      return fmt::format("rank {} on {} was not started by MPI", card.rank, card.host);
    if (!found->second.empty())
      return fmt::format("rank {} on {}: {}", card.rank, card.host, found->second);
  }
  return {};
}

}  // namespace

std::vector<std::string> engines_for(std::string_view backend, bool under_mpi) {
  if (backend == "shm") return {};
  if (is_auto(backend)) {
    if (under_mpi) return {"mpi", "gloo", "oneccl"};
    return {"gloo", "oneccl"};
  }
  const std::string_view engine =
      backend.starts_with(prefix) ? backend.substr(prefix.size()) : backend;
  require(std::find(std::begin(between_hosts), std::end(between_hosts), engine) !=
              std::end(between_hosts),
          [&] {
            return fmt::format(
                "backend '{}' is none: auto, shm, mpi, gloo, oneccl, shm+mpi, shm+gloo or "
                "shm+oneccl",
                backend);
          });
  return {std::string(engine)};
}

BackendChoice choose_backend(const std::vector<RankCard>& cards) {
  for (const RankCard& card : cards)
    if (!card.contradiction.empty())
      throw Error(Fault::mismatch, fmt::format("rank {} {}", card.rank, card.contradiction),
                  {card.rank});
  const std::string& wanted = cards.front().backend;
  for (const RankCard& card : cards)
    if (card.backend != wanted && !(is_auto(card.backend) && is_auto(wanted)))
      throw Error(Fault::mismatch, fmt::format("rank 0 asks for backend '{}', rank {} for '{}'",
                                               wanted, card.rank, card.backend));
  BackendChoice choice{.places = places_of(cards)};
  const auto hosts = std::set<int>(choice.places.begin(), choice.places.end()).size();
  const std::string count = fmt::format("{} rank{} on {} host{}", cards.size(),
                                        cards.size() == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
  if (is_auto(wanted) && hosts == 1) {
    choice.name = "shm";
    choice.why = count;
    return choice;
  }
  if (wanted == "shm") {
    if (hosts > 1)
      throw Error(Fault::unsupported, fmt::format("backend shm serves one host, but there are {}; "
                                                  "'auto' finds an engine between them",
                                                  count));
    choice.name = "shm";
    choice.why = "asked for";
    return choice;
  }
  const bool one_each = hosts == cards.size();
  std::string reasons;
  const bool mpi = cards.front().engines.contains("mpi");
  for (const std::string& engine : engines_for(wanted, mpi)) {
    const std::string reason = why_not(cards, engine);
    if (!reason.empty()) {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", engine, reason);
      continue;
    }
    choice.engine = engine;
    choice.shares_memory = is_auto(wanted) ? !one_each : wanted.starts_with(prefix);
    choice.name = choice.shares_memory ? std::string(prefix) + engine : engine;
    choice.why = is_auto(wanted) ? count : "asked for";
    if (is_auto(wanted) && !reasons.empty()) choice.why += "; not " + reasons;
    return choice;
  }
  throw Error(
      Fault::unsupported,
      fmt::format("{}, but no engine between hosts that all of them have: {}", count, reasons));
}

}  // namespace lockstep
