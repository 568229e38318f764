// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/continuation.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds look_interval{500};

std::string who_continues(int others) {
  if (others == 0) return "no other rank of this host is running";
  return fmt::format("{} {}", others, others == 1 ? "rank continues" : "ranks continue");
}

}  // namespace

Continuation::Continuation(const RunOptions& options, Time now)
    : most_(options.max_replacements.value_or(default_replacements * options.nproc_per_node)),
      ranks_(static_cast<std::size_t>(options.nproc_per_node),
             Rank{.backoff = RestartBackoff(options.max_restart_delay), .started = now}) {}

void Continuation::lose(int rank, const Failure& failure, const std::string& name, int others,
                        Time now) {
  ++failures_;
  if (!first_) first_ = failure;
  losses_.push_back({failure, who_continues(others) + "; " + schedule(rank, name, {}, now)});
}

std::string Continuation::retry(int rank, const std::string& name, Time now) {
  --replacements_;
  return schedule(rank, name, least_pause, now);
}

std::string Continuation::schedule(int rank, const std::string& name,
                                   std::chrono::milliseconds least, Time now) {
  if (why_none_.empty() && promised_ == most_)
    why_none_ =
        fmt::format("{} on this host are used up",
                    most_ == 1 ? "the 1 replacement" : fmt::format("all {} replacements", most_));
  if (!why_none_.empty()) return fmt::format("{} is not started again: {}", name, why_none_);
  const auto pause = std::max(at(rank).backoff.after(now - at(rank).started), least);
  waiting_.push_back({rank, now + pause});
  ++promised_;
  const std::string when =
      pause.count() == 0 ? ""
                         : fmt::format(" in {:g} s", std::chrono::duration<double>(pause).count());
  return fmt::format("starting {} again{} (replacement {} of {})", name, when, promised_, most_);
}

void Continuation::succeed(Time now) {
  if (succeeded_at_) return;
  succeeded_at_ = look_at_ = now;
  stop("a rank of this host has ended with code 0");
}

void Continuation::stop(const std::string& why) {
  waiting_.clear();
  if (why_none_.empty()) why_none_ = why;
}

std::optional<int> Continuation::take_due(Time now) {
  const auto due = std::find_if(waiting_.begin(), waiting_.end(),
                                [&](const Start& start) { return start.at <= now; });
  if (due == waiting_.end()) return std::nullopt;
  const int rank = due->rank;
  waiting_.erase(due);
  ++replacements_;
  ++at(rank).incarnation;
  at(rank).started = now;
  return rank;
}

bool Continuation::looks_for_stopped(Time now) {
  if (!succeeded_at_ || now < look_at_) return false;
  look_at_ = now + look_interval;
  return true;
}

bool Continuation::is_stuck(int rank, bool stopped, Time now) {
  std::optional<Time>& since = at(rank).stopped_since;
  if (!stopped)
    since.reset();
  else if (!since)
    since = now;
  return since && now - *since >= stopped_limit;
}

Deadline Continuation::deadline() const {
  Deadline first = succeeded_at_ ? look_at_ : no_deadline;
  for (const Start& start : waiting_) first = std::min(first, start.at);
  return first;
}

}  // namespace lockstep::launch
