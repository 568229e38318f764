// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::simulation {
namespace {

constexpr std::chrono::seconds time_for_state{20};

// The part of one rank in one step.
std::int64_t gradient_of(const Process& process, std::int64_t step) {
  Random random(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(process.id) + 1);
  return random.between(1, std::int64_t{1} << 40);
}

std::uint64_t mixed(std::uint64_t hash, std::int64_t gradient) {
  return Random(hash ^ static_cast<std::uint64_t>(gradient)).next();
}

}  // namespace

std::function<void()> SimulatedRuntime::start(std::function<void()> body) {
  Task& task = simulation_.start_task(std::move(body));
  return [this, &task] { simulation_.join(task); };
}

void Training::all_reduce(std::int64_t* values, std::size_t count, const char* label) {
  group_->all_reduce({.data = values, .count = count, .dtype = DType::int64}, ReduceOp::sum,
                     {.label = label});
}

// Generations whose objects were not made lie between the two groups.
void Training::check_former_ranks(const ProcessGroup& group, const SharedGroup& shared) {
  std::vector<int> expected;
  for (Process* const member : shared.members()) {
    const auto found = std::ranges::find(members_before_, member);
    const bool is_new = found == members_before_.end();
    expected.push_back(is_new ? -1 : static_cast<int>(found - members_before_.begin()));
  }
  if (before_ && former_ranks(*before_, group) != expected)
    checker_.report(
        "a process keeps its name in all generations",
        fmt::format("{} in {}, which was in {}", name_of(process_), group.name(), before_->name()));
  before_.emplace(group);
  members_before_ = shared.members();
}

void Training::make(ProcessGroup& group, bool restores) {
  simulation_.point("makes its objects");
  const auto shared = groups_.latest(process_);
  int generation = 0;
  std::istringstream(group.name().substr(group.name().find('~') + 1)) >> generation;
  checker_.made_group(process_, *shared, group.rank(), generation);
  simulation_.sleep(std::chrono::milliseconds(process_.random.between(0, 30)));
  check_former_ranks(group, *shared);
  group_ = &group;
  std::int64_t one = 1;
  all_reduce(&one, 1, "makes its objects together");
  if (one != group.size()) checker_.report("collectives", "a sum lacks ranks");
  if (restores) draws_ = copied_draws_;
}

void Training::require_whole(ProcessGroup&) {
  std::int64_t one = 1;
  all_reduce(&one, 1, "compares states");
}

void Training::send(ProcessGroup& group, int to) {
  groups_.latest(process_)->send(group.rank(), to, fmt::format("{} {} {}", steps_, hash_, draws_),
                                 simulation_.now() + time_for_state);
}

void Training::receive(ProcessGroup& group, int from) {
  std::istringstream text(
      groups_.latest(process_)->receive(group.rank(), from, simulation_.now() + time_for_state));
  text >> steps_ >> hash_ >> draws_;
  if (loses_a_step_ && steps_ > 0) hash_ ^= 1;
}

// The gradients are the sum of those of all ranks.
void Training::compute() {
  simulation_.point("computes");
  const std::int64_t step = steps_ + 1;
  checker_.computes(process_, step, hash_);
  if (draws_ != steps_)
    checker_.report(
        "a repeated step computes the same",
        fmt::format("{} computes step {} with draw {}", name_of(process_), step, draws_));
  ++draws_;
  simulation_.sleep(std::chrono::microseconds(
      process_.random.between(100, longest_compute_.count() * 1000) * process_.slowness));
  std::int64_t values[] = {gradient_of(process_, step), step};
  all_reduce(values, 2, "gradients");
  if (values[1] != step * group_->size())
    checker_.report("all ranks compute the same step",
                    fmt::format("{} computes step {}", name_of(process_), step));
  gradient_ = values[0];
  simulation_.point("has computed");
}

void Training::apply() {
  simulation_.point("applies");
  simulation_.sleep(std::chrono::microseconds(process_.random.between(1, 500)));
  checker_.applies(process_, steps_ + 1, gradient_);
  hash_ = mixed(hash_, gradient_);
  ++steps_;
  simulation_.point("has applied");
}

}  // namespace lockstep::simulation
