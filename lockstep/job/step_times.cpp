// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/step_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/job/step_clock.h"

namespace lockstep {
namespace {

constexpr std::array<StepPhase, step_phases> in_order{
    StepPhase::data, StepPhase::forward,   StepPhase::backward,   StepPhase::reduce,
    StepPhase::wait, StepPhase::optimizer, StepPhase::checkpoint, StepPhase::other};

long percent(const StepTimes& times, StepPhase phase) {
  const auto total = static_cast<double>(times.total().count());
  return total > 0 ? std::lround(100 * static_cast<double>(times[phase].count()) / total) : 0;
}

}  // namespace

const char* name(StepPhase phase) {
  switch (phase) {
    case StepPhase::other:
      return "other";
    case StepPhase::data:
      return "data";
    case StepPhase::forward:
      return "forward";
    case StepPhase::backward:
      return "backward";
    case StepPhase::reduce:
      return "reduce";
    case StepPhase::wait:
      return "wait";
    case StepPhase::optimizer:
      return "optimizer";
    case StepPhase::checkpoint:
      return "checkpoint";
  }
  return "?";
}

std::chrono::nanoseconds StepTimes::total() const {
  return std::accumulate(spent.begin(), spent.end(), std::chrono::nanoseconds(0));
}

int StepTimes::latest_rank() const {
  const auto latest = std::ranges::max_element(
      waited_for, {}, [](const auto& rank_and_time) { return rank_and_time.second; });
  return latest == waited_for.end() ? -1 : latest->first;
}

StepTimes step_times() {
  const StepClock* const own = StepClock::of_this_thread();
  return (own != nullptr ? *own : StepClock::of_process()).times();
}

StepTimes operator-(StepTimes end, const StepTimes& begin) {
  end.steps -= begin.steps;
  for (std::size_t i = 0; i < step_phases; ++i) end.spent[i] -= begin.spent[i];
  for (const auto& [rank, time] : begin.waited_for) end.waited_for[rank] -= time;
  std::erase_if(end.waited_for, [](const auto& each) { return each.second.count() <= 0; });
  return end;
}

std::string describe(const StepTimes& times, StepPhase phase) {
  std::string text = fmt::format("{} {} %", name(phase), percent(times, phase));
  const int latest = times.latest_rank();
  if (phase == StepPhase::wait && latest >= 0) text += fmt::format(" for rank {}", latest);
  return text;
}

std::string describe(const StepTimes& times) {
  std::string text;
  for (const StepPhase phase : in_order) {
    if (percent(times, phase) == 0) continue;
    if (!text.empty()) text += ", ";
    text += describe(times, phase);
  }
  return text;
}

InPhase::InPhase(StepPhase phase) : clock_(StepClock::adopted()) {
  if (clock_ != nullptr) before_ = clock_->enter(phase);
}

InPhase::~InPhase() {
  if (clock_ != nullptr) clock_->enter(before_);
}

}  // namespace lockstep
