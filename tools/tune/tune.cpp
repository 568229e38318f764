// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::tools {
namespace {

// A division's minimum speed to stay in the round, relative to the best one's.
constexpr std::array<double, 3> share_of_round{0, 0.85, 0.96};

double speed_of(const TunedDivision& tuned) {
  return tuned.samples_per_second ? tuned.samples_per_second->median : 0;
}

void add(TunedDivision& tuned, const DivisionRun& run, int global_batch) {
  tuned.memory = std::max(tuned.memory, run.memory);
  tuned.problem = run.problem;
  tuned.output = run.output;
  if (!run.steps_per_second) {
    if (run.signal == 0) tuned.samples_per_second.reset();
    return;
  }
  const double batch = global_batch;
  const Rate rate{run.steps_per_second->median * batch, run.steps_per_second->low * batch,
                  run.steps_per_second->high * batch};
  const double before = tuned.runs;
  const Rate past = tuned.samples_per_second.value_or(rate);
  tuned.samples_per_second = Rate{.median = (past.median * before + rate.median) / (before + 1),
                                  .low = std::min(past.low, rate.low),
                                  .high = std::max(past.high, rate.high)};
  tuned.wait = (tuned.wait * before + run.wait) / (before + 1);
  ++tuned.runs;
}

std::optional<std::size_t> best_of(const std::vector<TunedDivision>& all) {
  const auto best = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return speed_of(a) < speed_of(b);
  });
  if (best == all.end() || speed_of(*best) == 0) return std::nullopt;
  return static_cast<std::size_t>(best - all.begin());
}

// Returns a round's divisions; none if the best has no rival.
std::vector<std::size_t> contenders(const Tuning& tuning, std::size_t round) {
  std::vector<std::size_t> found;
  const double best = tuning.best ? speed_of(tuning.divisions[*tuning.best]) : 0;
  for (std::size_t i = 0; i < tuning.divisions.size(); ++i)
    if (round == 0 || speed_of(tuning.divisions[i]) >= share_of_round.at(round) * best)
      found.push_back(i);
  if (round > 0 && (found.size() < 2 || best == 0)) found.clear();
  if (round % 2 == 1) std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace

Tuning tune(const std::vector<Division>& divisions, int global_batch, const RunDivision& run,
            const std::function<void(const std::string&)>& show) {
  Tuning tuning;
  for (const Division& division : divisions) tuning.divisions.push_back({.division = division});
  for (std::size_t round = 0; round < share_of_round.size(); ++round) {
    for (const std::size_t i : contenders(tuning, round)) {
      TunedDivision& tuned = tuning.divisions[i];
      const auto show_run = [&](const std::string& text) {
        show(fmt::format("round {}: {}: {}", round + 1, describe(tuned.division), text));
      };
      const DivisionRun measured = run(tuned.division, show_run);
      add(tuned, measured, global_batch);
      tuning.signal = measured.signal;
      if (tuning.signal != 0) break;
    }
    tuning.best = best_of(tuning.divisions);
    if (tuning.signal != 0) break;
  }
  return tuning;
}

}  // namespace lockstep::tools
