// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/checker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>

namespace lockstep::simulation {
namespace {

std::string text_of(const comm::Decision& decision) {
  std::vector<std::string> members;
  for (const Seat& seat : decision.members) members.push_back(comm::text_of(seat));
  return fmt::format("generation {} of [{}], {} have the state, after step {}, {} arrivals",
                     decision.generation, fmt::join(members, ", "), decision.holders,
                     decision.completed, decision.arrivals);
}

// The number that follows `begin` in a key.
std::optional<int> number_after(std::string_view key, std::string_view begin) {
  if (!key.starts_with(begin)) return std::nullopt;
  int number = 0;
  const auto [end, error] =
      std::from_chars(key.data() + begin.size(), key.data() + key.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

// --- Decisions -----------------------------------------------------------------------------------

bool Checker::is_member(const Process& process, const comm::Decision& decision) const {
  return comm::place_of(process.seat, decision.members).has_value();
}

void Checker::store_changed(const Process& by, const job::StoreRequest& request) {
  const std::string key(request.key);
  const job::StoreTable::Value value = server_.table().find(key);
  if (value == nullptr) {
    written_.erase(key);
    return;
  }
  written_[key] = {simulation_.now(), by.id};
  if (entry_in(key) != "newest" || *value != request.value) return;
  const comm::Decision decision = comm::decode_decision(*value);
  const auto known = decisions_.find(decision.generation);
  if (known == decisions_.end()) return decided(decision);
  if (encode(known->second) != *value)
    report("one decision per generation",
           fmt::format("{}, but before: {}", text_of(decision), text_of(known->second)));
}

void Checker::decided(const comm::Decision& decision) {
  simulation_.trace("decided: " + text_of(decision));
  const auto before = decisions_.find(decision.generation - 1);
  if (decision.generation != 0 && before == decisions_.end())
    return report("generations form one chain", text_of(decision));
  decisions_.emplace(decision.generation, decision);
  decided_at_.emplace(decision.generation, simulation_.now());
  std::set<Seat> seats(decision.members.begin(), decision.members.end());
  if (seats.size() != decision.members.size())
    return report("members are unique", text_of(decision));
  if (decision.members.empty())  // Nobody has the state: the end of the job.
    return before == decisions_.end() ? void() : check_loss_of_state(before->second);
  if (decision.generation != 0) {
    const comm::Decision& last = before->second;
    for (int i = 0; i < decision.holders; ++i)
      if (!comm::place_of(decision.members[static_cast<std::size_t>(i)], last.members))
        return report("ranks with the state were members before",
                      fmt::format("{}, after {}", text_of(decision), text_of(last)));
    if (decision.completed < last.completed || decision.arrivals < last.arrivals)
      return report("completed steps never decrease",
                    fmt::format("{}, after {}", text_of(decision), text_of(last)));
  }
  if (!gradients_.empty() && decision.completed < gradients_.rbegin()->first)
    report("a step that a rank has applied is complete",
           fmt::format("{}, but a rank has applied step {}", text_of(decision),
                       gradients_.rbegin()->first));
}

void Checker::check_loss_of_state(const comm::Decision& last) {
  for (const auto& process : simulation_.processes()) {
    const auto place = comm::place_of(process->seat, last.members);
    if (!place || *place >= last.holders) continue;
    if (!process->is_alive || process->is_told_to_leave || hindered_.contains(process->id))
      continue;
    report("the state is kept",
           fmt::format("nobody is in the generation after {}, but {} has the state", text_of(last),
                       name_of(*process)));
  }
}

void Checker::made_group(const Process& process, const SharedGroup& group, int rank,
                         int generation) {
  simulation_.trace(
      fmt::format("{} is rank {} of {} in {}", name_of(process), rank, group.size(), group.name()));
  const auto [known, is_new] = groups_.emplace(generation, group.members());
  if (!is_new && known->second != group.members())
    return report("one group per generation",
                  fmt::format("{} made another {}", name_of(process), group.name()));
  const comm::Decision& decision = decisions_.at(generation);
  for (int i = 0; i < group.size(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    if (static_cast<int>(decision.members.size()) != group.size() ||
        group.members()[place]->seat != decision.members[place])
      return report("groups have the members of their decision",
                    fmt::format("{} in {}: {}", name_of(process), group.name(), text_of(decision)));
  }
  if (group.members()[static_cast<std::size_t>(rank)] != &process)
    report("ranks are unique", fmt::format("{} is rank {}", name_of(process), rank));
}

// --- Steps ---------------------------------------------------------------------------------------

void Checker::computes(const Process& process, std::int64_t step, std::uint64_t hash) {
  const auto [known, is_new] = hashes_.emplace(step - 1, hash);
  if (known->second != hash)
    report("all ranks have the same state",
           fmt::format("{} computes step {} from another state", name_of(process), step));
}

void Checker::applies(const Process& process, std::int64_t step, std::int64_t gradient) {
  ++applications_;
  const auto [known, is_new] = gradients_.emplace(step, gradient);
  if (known->second != gradient)
    report("a step is applied by all ranks or by none",
           fmt::format("{} applies step {} with other gradients than a rank before",
                       name_of(process), step));
  if (!decisions_.empty()) {
    const comm::Decision& newest = decisions_.rbegin()->second;
    if (!is_member(process, newest) && step > newest.completed)
      report("only members apply steps", fmt::format("{} applies step {} after the decision {}",
                                                     name_of(process), step, text_of(newest)));
  }
}

// --- The end -------------------------------------------------------------------------------------

void Checker::ended(const Process& process) {
  for (const std::string_view permitted :
       {"finished", "left", "was killed", "died", "peer_lost", "aborted", "timeout"})
    if (process.outcome.starts_with(permitted)) return;
  report("permitted errors", fmt::format("{} ended: {}", name_of(process), process.outcome));
}

bool Checker::is_needed(std::string_view key, const std::string& value) const {
  const comm::Decision& newest = decisions_.rbegin()->second;
  if (key.starts_with(fmt::format("lockstep/world~{}/", newest.generation))) return true;
  const auto entry = entry_in(key);
  if (!entry) return false;
  for (const std::string_view always : {"seat/", "newest", "heartbeat", "finished"})
    if (entry->starts_with(always)) return true;
  if (const auto g = number_after(*entry, "decision/")) return *g >= newest.generation;
  if (const auto g = number_after(*entry, "vote/")) return *g > newest.generation;
  if (const auto g = number_after(*entry, "keys/")) return *g >= newest.generation;
  if (const auto g = number_after(*entry, "given-up/")) return *g >= newest.generation;
  if (const auto n = number_after(*entry, "arrival/")) return *n > newest.arrivals;
  if (entry->starts_with("invitation/")) return std::stoi(value) > newest.generation;
  return false;
}

void Checker::check_keys(const Process& process, Duration rest, const std::set<int>& touched) {
  if (decisions_.empty()) return;
  const comm::Decision& newest = decisions_.rbegin()->second;
  if (newest.members.empty() || newest.members.front() != process.seat) return;
  if (simulation_.now() - decided_at_.rbegin()->second < rest) return;
  for (const auto& [key, value] : server_.table().values()) {
    if (is_needed(key, *value)) continue;
    const auto& [time, by] = written_.find(key)->second;
    const Process& writer = *simulation_.processes()[static_cast<std::size_t>(by)];
    if (touched.contains(by) && !is_member(writer, newest)) continue;
    return report("keys do not grow with generations",
                  fmt::format("key {} of {} is left in {}", key, name_of(writer), text_of(newest)));
  }
}

}  // namespace lockstep::simulation
