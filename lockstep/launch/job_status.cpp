// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/status.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

// The control block knows no other group's members. ElasticGroup appends a number.
bool in_world(const ShownCall& call) {
  std::string_view name = "world";
  const std::string group = group_of(call);
  if (!group.starts_with(name)) return false;
  name = std::string_view(group).substr(name.size());
  if (name.empty()) return true;
  return name.starts_with('~') && name.find_first_not_of("0123456789", 1) == name.npos;
}

std::string state_of(const JobControlBlock& page, int slot) {
  if (page.phase(slot) == JobControlBlock::Phase::vacant) return "starting";
  const char process = page.process_state(slot);
  if (process == 'T' || process == 't') return "stopped";
  if (process == '?' || process == 'Z' || process == 'X') return "ended";
  if (page.phase(slot) != JobControlBlock::Phase::alive) return "running";  // It is in no group.
  if (page.lost(slot)) return "ended";
  return page.activity(slot).inside() ? "waiting" : "running";
}

std::string last_of(const JobControlBlock& page, int slot) {
  switch (page.phase(slot)) {
    case JobControlBlock::Phase::vacant:
      return "yet to join its group";
    case JobControlBlock::Phase::finished:
      return "has left its group";
    case JobControlBlock::Phase::abandoned:
      return "has lost its group";
    case JobControlBlock::Phase::alive:
      break;
  }
  return describe(page.activity(slot));
}

// A rank now in another group may have called this operation before, which its activity does not
// show.
bool yet_to_come(const ShownCall& other, std::uint64_t sequence) {
  return other.sequence() == 0 || (in_world(other) && other.sequence() < sequence);
}

double in_seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::chrono::nanoseconds nanoseconds_in(double seconds) {
  return std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void show_recent(const StepTimes& times, RankStatus& status) {
  const double total = in_seconds(times.total());
  if (total == 0) return;
  status.phases = describe(times);
  status.latest_rank = times.latest_rank();
  status.steps_per_second = std::round(static_cast<double>(times.steps) / total * 1000) / 1000;
  for (std::size_t i = 0; i < step_phases; ++i) {
    const double share = in_seconds(times.spent[i]) / total;
    status.shares[name(static_cast<StepPhase>(i))] = std::round(share * 1000) / 1000;
  }
}

void show_whole(const StepTimes& times, RankStatus& status) {
  if (times.total().count() == 0) return;
  status.steps = times.steps;
  for (std::size_t i = 0; i < step_phases; ++i)
    status.seconds[name(static_cast<StepPhase>(i))] = in_seconds(times.spent[i]);
  for (const auto& [rank, time] : times.waited_for)
    status.waited_for[fmt::format("{}", rank)] = in_seconds(time);
}

StepTimes renumbered(const StepTimes& times, const std::vector<int>& ranks) {
  StepTimes found = times;
  found.waited_for.clear();
  for (const auto& [slot, time] : times.waited_for)
    if (slot >= 0 && slot < static_cast<int>(ranks.size()) &&
        ranks[static_cast<std::size_t>(slot)] >= 0)
      found.waited_for.emplace(ranks[static_cast<std::size_t>(slot)], time);
  return found;
}

// Call visit(key, field) in the JSON object's order.
template <class Rank, class Visitor>
void visit_rank(Rank& rank, const Visitor& visit) {
  visit("rank", rank.rank);
  visit("pid", rank.pid);
  visit("incarnation", rank.incarnation);
  visit("group_rank", rank.group_rank);
  visit("group_size", rank.group_size);
  visit("state", rank.state);
  visit("waits_for", rank.waits_for);
  visit("step", rank.step);
  visit("last", rank.last);
  visit("phases", rank.phases);
  visit("shares", rank.shares);
  visit("latest_rank", rank.latest_rank);
  visit("steps_per_second", rank.steps_per_second);
  visit("steps", rank.steps);
  visit("seconds", rank.seconds);
  visit("waited_for", rank.waited_for);
  visit("stood_still", rank.stood_still);
  visit("memory", rank.memory);
  visit("bound_to", rank.bound_to);
}

template <class Job, class Visitor>
void visit_job(Job& job, const Visitor& visit) {
  visit("job_id", job.job_id);
  visit("program", job.program);
  visit("agent_pid", job.agent_pid);
  visit("host", job.host);
  visit("node", job.node);
  visit("nodes", job.nodes);
  visit("world_size", job.world_size);
  visit("attempt", job.attempt);
  visit("restarts", job.restarts);
  visit("state", job.state);
  visit("seconds", job.seconds);
  visit("ranks", job.ranks);
}

struct FieldWriter {
  ordered_json& object;

  template <class Value>
  void operator()(const char* key, const Value& value) const {
    object[key] = value;
  }
  void operator()(const char* key, const std::vector<RankStatus>& ranks) const {
    ordered_json& array = object[key] = ordered_json::array();
    for (const RankStatus& rank : ranks) {
      ordered_json item = ordered_json::object();
      visit_rank(rank, FieldWriter{item});
      array.push_back(std::move(item));
    }
  }
};

struct FieldReader {
  const ordered_json& object;

  template <class Value>
  void operator()(const char* key, Value& value) const {
    if (const auto found = object.find(key); found != object.end()) found->get_to(value);
  }
  void operator()(const char* key, std::vector<RankStatus>& ranks) const {
    for (const ordered_json& item : object.value(key, ordered_json::array()))
      visit_rank(ranks.emplace_back(), FieldReader{item});
  }
};

ordered_json object_of(const JobStatus& job) {
  ordered_json object = ordered_json::object();
  visit_job(job, FieldWriter{object});
  return object;
}

// Arguments may be any bytes: replaces invalid UTF-8, and escapes characters that terminals might
// interpret.
std::string text_of(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', true, ordered_json::error_handler_t::replace);
}

}  // namespace

RankStatus status_of(const JobControlBlock& page, int slot, int first_rank) {
  const Activity& own = page.activity(slot);
  RankStatus status{.rank = first_rank + slot,
                    .pid = page.pid(slot),
                    .state = state_of(page, slot),
                    .step = own.step.load(std::memory_order_relaxed),
                    .last = last_of(page, slot)};
  const StepReport& report = page.step_report(slot);
  show_recent(report.recent.shown(), status);
  show_whole(report.whole.shown(), status);
  status.stood_still = in_seconds(std::chrono::nanoseconds(report.stood_still));
  const ShownCall& call = own.latest();
  if (!call.inside() || !in_world(call)) return status;
  const int peer = own.peer.load(std::memory_order_relaxed);
  for (int other = 0; other < page.slots(); ++other) {
    const bool is_awaited =
        is_message(call.operation())
            ? first_rank + other == peer
            : other != slot && yet_to_come(page.activity(other).collective, call.sequence());
    if (is_awaited) status.waits_for.push_back(first_rank + other);
  }
  return status;
}

RankStatus status_of(const JobControlBlock& page, int slot, const std::vector<int>& ranks) {
  RankStatus status = status_of(page, slot);
  const auto rank_of = [&](int other) { return ranks[static_cast<std::size_t>(other)]; };
  status.rank = rank_of(slot);
  status.group_rank = slot;
  status.group_size = page.slots();
  for (int& other : status.waits_for) other = rank_of(other);
  std::erase(status.waits_for, -1);
  std::ranges::sort(status.waits_for);
  const StepReport& report = page.step_report(slot);
  status.waited_for.clear();
  show_recent(renumbered(report.recent.shown(), ranks), status);
  show_whole(renumbered(report.whole.shown(), ranks), status);
  return status;
}

RankTimes times_of(const RankStatus& rank) {
  RankTimes found{.rank = rank.rank,
                  .times = {.steps = rank.steps},
                  .stood_still = nanoseconds_in(rank.stood_still)};
  for (std::size_t i = 0; i < step_phases; ++i) {
    const auto phase = rank.seconds.find(name(static_cast<StepPhase>(i)));
    if (phase != rank.seconds.end()) found.times.spent[i] = nanoseconds_in(phase->second);
  }
  for (const auto& [number, seconds] : rank.waited_for)
    found.times.waited_for[std::atoi(number.c_str())] = nanoseconds_in(seconds);
  return found;
}

std::string describe(const RankStatus& rank) {
  if (rank.waits_for.empty()) return rank.last;
  return fmt::format("{}, waits for {}", rank.last, as_ranges(rank.waits_for));
}

std::string to_json_object(const JobStatus& job) { return text_of(object_of(job), -1); }

std::string to_json(const std::vector<JobStatus>& jobs) {
  ordered_json all = ordered_json::array();
  for (const JobStatus& job : jobs) all.push_back(object_of(job));
  return text_of(all, 2);
}

std::optional<JobStatus> job_status_in(const std::string& text) try {
  const auto object = ordered_json::parse(text);
  JobStatus job;
  visit_job(job, FieldReader{object});
  return job;
} catch (const ordered_json::exception&) {
  return std::nullopt;
}

}  // namespace lockstep
