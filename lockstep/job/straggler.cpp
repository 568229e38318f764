// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace lockstep {
namespace {

// In the other two a rank waits or communicates.
constexpr StepPhase own_phases[] = {StepPhase::data,       StepPhase::forward,
                                    StepPhase::backward,   StepPhase::optimizer,
                                    StepPhase::checkpoint, StepPhase::other};

double ms(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double a_step(const RankTimes& rank, std::chrono::nanoseconds time) {
  return ms(time) / static_cast<double>(rank.times.steps);
}

double wait_for(const RankTimes& rank, int other) {
  const auto found = rank.times.waited_for.find(other);
  return found == rank.times.waited_for.end() ? 0 : a_step(rank, found->second);
}

std::chrono::nanoseconds longest_wait_for(int rank, std::span<const RankTimes> ranks) {
  std::chrono::nanoseconds longest{0};
  for (const RankTimes& each : ranks) {
    const auto found = each.times.waited_for.find(rank);
    if (each.rank != rank && found != each.times.waited_for.end())
      longest = std::max(longest, found->second);
  }
  return longest;
}

// Removes a stop from the stopped rank's waits. A stop in a collective counts as a wait,
// although the last rank may have arrived long before. If it stopped elsewhere, the others
// waited.
void remove_stop(RankTimes& stopped, std::span<const RankTimes> all) {
  auto rest = stopped.stood_still - longest_wait_for(stopped.rank, all);
  auto& waits = stopped.times.waited_for;
  while (rest.count() > 0 && !waits.empty()) {
    const auto longest =
        std::ranges::max_element(waits, {}, [](const auto& wait) { return wait.second; });
    const auto part = std::min(rest, longest->second);
    rest -= part;
    stopped.times.spent[static_cast<std::size_t>(StepPhase::wait)] -= part;
    longest->second -= part;
    if (longest->second.count() <= 0) waits.erase(longest);
  }
}

class Ranks {
 public:
  Ranks(std::span<const RankTimes> all, std::int64_t steps) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(ranks_),
                 [&](const RankTimes& each) { return each.times.steps >= steps; });
    for (RankTimes& each : ranks_) remove_stop(each, all);
  }

  // The mean over all ranks but one; 0 without any.
  template <class Value>
  double mean_without(int rank, const Value& value) const {
    double sum = 0;
    int count = 0;
    for (const RankTimes& each : ranks_) {
      if (each.rank == rank) continue;
      sum += value(each);
      ++count;
    }
    return count == 0 ? 0 : sum / count;
  }

  double mean_wait_for(int rank) const {
    return mean_without(rank, [&](const RankTimes& each) { return wait_for(each, rank); });
  }

  // The rank for which the others waited longest, perhaps not in `ranks_`; -1 without any.
  int most_waited_for() const {
    std::map<int, double> waits;
    for (const RankTimes& each : ranks_)
      for (const auto& [rank, time] : each.times.waited_for)
        if (rank != each.rank) waits[rank] += a_step(each, time);
    const auto longest =
        std::ranges::max_element(waits, {}, [](const auto& wait) { return wait.second; });
    return longest == waits.end() ? -1 : longest->first;
  }

  const RankTimes* find(int rank) const {
    const auto found = std::ranges::find(ranks_, rank, &RankTimes::rank);
    return found == ranks_.end() ? nullptr : &*found;
  }

  std::vector<std::pair<StepPhase, double>> late_phases(const RankTimes& late, double wait) const {
    std::vector<std::pair<StepPhase, double>> phases;
    for (const StepPhase phase : own_phases) {
      const double others = mean_without(
          late.rank, [&](const RankTimes& each) { return a_step(each, each.times[phase]); });
      const double more = std::min(a_step(late, late.times[phase]) - others, wait);
      if (more >= wait / 10) phases.emplace_back(phase, more);
    }
    std::ranges::stable_sort(phases, std::ranges::greater(),
                             [](const auto& each) { return each.second; });
    return phases;
  }

  double lost_for(int rank) const {
    return mean_without(rank, [&](const RankTimes& each) {
      return wait_for(each, rank) * static_cast<double>(each.times.steps);
    });
  }

 private:
  std::vector<RankTimes> ranks_;
};

double sum_of(const std::vector<std::pair<StepPhase, double>>& phases) {
  double sum = 0;
  for (const auto& [phase, time] : phases) sum += time;
  return sum;
}

// "41", "3.8", "0.25".
std::string short_number(double value) {
  const int decimals = value >= 9.95 ? 0 : value >= 0.995 ? 1 : 2;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string text_of(const std::vector<std::pair<StepPhase, double>>& phases) {
  constexpr std::size_t most = 2;
  std::string text;
  for (std::size_t i = 0; i < std::min(phases.size(), most); ++i)
    text += fmt::format("{}{} in {}", i == 0 ? ", of which " : " and ",
                        short_number(phases[i].second), name(phases[i].first));
  return text;
}

}  // namespace

std::optional<Straggler> find_straggler(std::span<const RankTimes> all,
                                        const StragglerLimits& limits) {
  const Ranks ranks(all, limits.steps);
  Straggler found{.rank = ranks.most_waited_for()};
  if (found.rank < 0) return std::nullopt;
  found.waited_ms = ranks.mean_wait_for(found.rank);
  const double step = ranks.mean_without(
      found.rank, [](const RankTimes& each) { return a_step(each, each.times.total()); });
  found.share = step > 0 ? found.waited_ms / step : 0;
  const RankTimes* const late = ranks.find(found.rank);
  const double own = late != nullptr ? a_step(*late, late->times[StepPhase::wait]) : 0;
  const bool is_little = found.waited_ms - own < limits.share * step;
  if (is_little || ranks.lost_for(found.rank) < ms(limits.lost)) return std::nullopt;
  if (late == nullptr) return found;
  found.late_in = ranks.late_phases(*late, found.waited_ms);
  const bool is_in_turn =
      own > limits.own_wait * found.waited_ms && sum_of(found.late_in) < found.waited_ms / 2;
  if (is_in_turn) return std::nullopt;
  found.stood_still_ms = std::min(a_step(*late, late->stood_still), found.waited_ms);
  return found;
}

std::string describe(const Straggler& straggler) {
  std::string text =
      fmt::format("others waited {} ms a step ({:.0f} %) for rank {}",
                  short_number(straggler.waited_ms), 100 * straggler.share, straggler.rank) +
      text_of(straggler.late_in);
  if (straggler.stood_still_ms >= straggler.waited_ms / 10)
    text += fmt::format(" (its process stood still for {} of them)",
                        short_number(straggler.stood_still_ms));
  return text;
}

}  // namespace lockstep
