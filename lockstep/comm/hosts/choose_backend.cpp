// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/choose_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/engine.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view prefix = "shm+";
constexpr std::string_view between_hosts[] = {"mpi", "gloo", "oneccl", "torch"};

bool is_auto(std::string_view backend) { return backend.empty() || backend == "auto"; }

std::vector<int> places_of(const std::vector<RankInfo>& ranks) {
  std::vector<int> places;
  for (const RankInfo& info : ranks) {
    const auto first = std::find_if(ranks.begin(), ranks.end(),
                                    [&](const RankInfo& one) { return one.place == info.place; });
    places.push_back(static_cast<int>(first - ranks.begin()));
  }
  return places;
}

std::string why_not(const std::vector<RankInfo>& ranks, const std::string& engine) {
  for (const RankInfo& info : ranks) {
    const auto found = info.engines.find(engine);
    if (found == info.engines.end())
      return fmt::format("rank {} on {} was not started by MPI", info.rank, info.host);
    if (!found->second.empty())
      return fmt::format("rank {} on {}: {}", info.rank, info.host, found->second);
  }
  return {};
}

}  // namespace

std::vector<std::string> engines_for(std::string_view backend, bool under_mpi) {
  if (backend == "shm") return {};
  if (is_auto(backend)) {
    if (under_mpi) return {"mpi", "gloo", "oneccl", "torch"};
    return {"gloo", "oneccl", "torch"};
  }
  const std::string_view engine =
      backend.starts_with(prefix) ? backend.substr(prefix.size()) : backend;
  require(std::find(std::begin(between_hosts), std::end(between_hosts), engine) !=
              std::end(between_hosts),
          [&] {
            return fmt::format(
                "there is no backend '{}': use auto, shm, mpi, gloo, oneccl, torch, shm+mpi, "
                "shm+gloo, shm+oneccl or shm+torch",
                backend);
          });
  return {std::string(engine)};
}

BackendChoice choose_backend(const std::vector<RankInfo>& ranks) {
  for (const RankInfo& info : ranks)
    if (!info.contradiction.empty())
      throw Error(Fault::mismatch, fmt::format("rank {} {}", info.rank, info.contradiction),
                  {info.rank});
  const std::string& wanted = ranks.front().backend;
  for (const RankInfo& info : ranks)
    if (info.backend != wanted && !(is_auto(info.backend) && is_auto(wanted)))
      throw Error(Fault::mismatch, fmt::format("rank 0 asks for backend '{}', rank {} for '{}'",
                                               wanted, info.rank, info.backend));
  BackendChoice choice{.places = places_of(ranks)};
  const auto hosts = std::set<int>(choice.places.begin(), choice.places.end()).size();
  const std::string count = fmt::format("{} rank{} on {} host{}", ranks.size(),
                                        ranks.size() == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
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
  const bool one_each = hosts == ranks.size();
  std::string reasons;
  const bool mpi = ranks.front().engines.contains("mpi");
  for (const std::string& engine : engines_for(wanted, mpi)) {
    const std::string reason = why_not(ranks, engine);
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

}  // namespace lockstep::comm
