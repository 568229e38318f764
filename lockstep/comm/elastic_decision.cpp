// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

using Json = nlohmann::json;

template <class Read>
auto decode(std::string_view text, Read read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    throw Error(
        Fault::corrupt,
        fmt::format("the job's store has a damaged value of an elastic group: {}", error.what()));
  }
}

}  // namespace

std::string text_of(const Seat& seat) { return fmt::format("{}.{}", seat.rank, seat.incarnation); }

std::string encode(const Vote& vote) {
  if (!vote.progress) return Json::object().dump();
  return Json{{"completed", vote.progress->completed},
              {"prepared", vote.progress->prepared},
              {"leaves", vote.progress->leaves}}
      .dump();
}

Vote decode_vote(std::string_view text) {
  return decode(text, [](const Json& json) {
    if (json.empty()) return Vote{};
    return Vote{StepProgress{.completed = json.at("completed").get<std::int64_t>(),
                             .prepared = json.at("prepared").get<std::int64_t>(),
                             .leaves = json.at("leaves").get<bool>()}};
  });
}

std::string encode(const Decision& decision) {
  Json members = Json::array();
  for (const Seat& seat : decision.members) members.push_back({seat.rank, seat.incarnation});
  return Json{{"generation", decision.generation},
              {"members", members},
              {"holders", decision.holders},
              {"completed", decision.completed},
              {"arrivals", decision.arrivals}}
      .dump();
}

Decision decode_decision(std::string_view text) {
  return decode(text, [](const Json& json) {
    Decision decision{.generation = json.at("generation").get<int>(),
                      .holders = json.at("holders").get<int>(),
                      .completed = json.at("completed").get<std::int64_t>(),
                      .arrivals = json.at("arrivals").get<std::int64_t>()};
    for (const Json& seat : json.at("members"))
      decision.members.push_back({seat.at(0).get<int>(), seat.at(1).get<int>()});
    return decision;
  });
}

Decision decide(const Decision& before, const std::map<Seat, Vote>& votes, std::int64_t arrivals) {
  Decision decision{.generation = before.generation + 1, .arrivals = arrivals};
  std::int64_t most_completed = 0;
  std::int64_t least_prepared = std::numeric_limits<std::int64_t>::max();
  for (const Seat& seat : before.members) {
    const auto vote = votes.find(seat);
    if (vote == votes.end() || !vote->second.progress) continue;
    const StepProgress& progress = *vote->second.progress;
    most_completed = std::max(most_completed, progress.completed);
    least_prepared = std::min(least_prepared, progress.prepared);
    if (!progress.leaves) decision.members.push_back(seat);
  }
  decision.holders = static_cast<int>(decision.members.size());
  if (decision.members.empty()) return decision;
  decision.completed = std::max(most_completed, least_prepared);
  for (const auto& [seat, vote] : votes)
    if (!vote.progress) decision.members.push_back(seat);
  return decision;
}

std::optional<int> place_of(const Seat& seat, const std::vector<Seat>& members) {
  const auto found = std::find(members.begin(), members.end(), seat);
  if (found == members.end()) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

std::chrono::milliseconds pause_between_looks(std::size_t members) {
  constexpr std::size_t looks_per_ms = 5;  // By all members.
  return std::chrono::milliseconds(std::clamp<std::size_t>(members / looks_per_ms, 20, 1000));
}

std::chrono::milliseconds pause_before_invitation(std::size_t members) {
  return std::min(pause_between_looks(members), time_to_answer / 4);
}

}  // namespace lockstep::comm
