// SPDX-License-Identifier: Apache-2.0
#include "tools/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::tools {
namespace {

// The first steps allocate memory and fill caches.
constexpr std::size_t warm_up_rows = 1;
constexpr std::size_t most_bins = 300;

std::size_t first_row(const std::vector<StepRow>& rows) {
  return rows.size() > warm_up_rows ? warm_up_rows : 0;
}

// Without the rank's first step, if rows contain it; each row represents all steps until the
// next.
RankTimes times_of(const RankTimes& total, const std::vector<StepRow>& rows) {
  if (rows.empty()) return total;
  const std::size_t first = first_row(rows);
  RankTimes times = total;
  times.times.steps = std::max<std::int64_t>(total.times.steps, std::ssize(rows)) -
                      static_cast<std::int64_t>(first);
  const double steps_a_row =
      static_cast<double>(times.times.steps) / static_cast<double>(rows.size() - first);
  for (std::size_t phase = 0; phase < step_phases; ++phase) {
    double sum = 0;
    for (std::size_t i = first; i < rows.size(); ++i) sum += rows[i].phases[phase];
    times.times.spent[phase] = std::chrono::round<std::chrono::nanoseconds>(
        std::chrono::duration<double>(sum * steps_a_row));
  }
  return times;
}

Split split_of(const RankTimes& rank) {
  Split split{};
  for (std::size_t i = 0; i < step_phases; ++i)
    split[i] = std::chrono::duration<double, std::milli>(rank.times.spent[i]).count() /
               static_cast<double>(rank.times.steps);
  return split;
}

Split mean_of(const std::vector<Split>& splits) {
  Split mean{};
  for (const Split& split : splits)
    for (std::size_t i = 0; i < step_phases; ++i)
      mean[i] += split[i] / static_cast<double>(splits.size());
  return mean;
}

double sum_of(const Split& split) { return std::accumulate(split.begin(), split.end(), 0.0); }

std::vector<double> sorted_ms(const RunFile& run) {
  std::vector<double> all;
  for (const auto& rows : run.steps)
    for (std::size_t i = first_row(rows); i < rows.size(); ++i)
      all.push_back(1000 * rows[i].seconds);
  std::ranges::sort(all);
  return all;
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

StepBin bin_of(const RunFile& run, std::size_t begin, std::size_t end) {
  StepBin bin{.step = static_cast<double>(run.first_step) +
                      static_cast<double>(begin) * static_cast<double>(run.every),
              .least_ms = 1e300};
  double sum = 0;
  int count = 0;
  for (const auto& rows : run.steps) {
    for (std::size_t i = begin; i < std::min(end, rows.size()); ++i) {
      const double ms = 1000 * rows[i].seconds;
      sum += ms;
      ++count;
      bin.least_ms = std::min(bin.least_ms, ms);
      bin.most_ms = std::max(bin.most_ms, ms);
    }
  }
  bin.mean_ms = sum / std::max(count, 1);
  return bin;
}

std::vector<StepBin> bins_of(const RunFile& run) {
  std::size_t rows = 0;
  for (const auto& rank : run.steps) rows = std::max(rows, rank.size());
  const std::size_t width = rows / most_bins + 1;
  std::vector<StepBin> bins;
  for (std::size_t begin = 0; begin < rows; begin += width)
    bins.push_back(bin_of(run, begin, begin + width));
  return bins;
}

// The steps of `samples`.
double all_steps(const RunFile& run) {
  std::int64_t most = 0;
  for (const RankTimes& total : run.totals) most = std::max(most, total.times.steps);
  return static_cast<double>(most);
}

// As reported, or from the option batch_size; 0 if unknown.
double samples_a_step(const RunFile& run) {
  if (run.samples > 0 && all_steps(run) > 0) return run.samples / all_steps(run);
  const auto option = run.options.find("batch_size");
  double batch = 0;
  if (option != run.options.end())
    std::from_chars(option->second.data(), option->second.data() + option->second.size(), batch);
  return std::isfinite(batch) && batch > 0 ? batch * run.ranks : 0;
}

std::string_view how_it_ended_without_steps(const RunFile& run) {
  if (run.ended == "failed") return "this run has failed before that";
  if (run.ended == "running") return "this run has just begun, or was killed before that";
  return "there were no steps in this run";
}

RunFigures figures_of(const RunFile& run) {
  RunFigures figures;
  for (const RankTimes& total : run.totals) {
    const auto rank = static_cast<std::size_t>(total.rank);
    const RankTimes times =
        times_of(total, rank < run.steps.size() ? run.steps[rank] : std::vector<StepRow>());
    if (times.times.steps == 0) continue;
    figures.times.push_back(times);
    figures.splits.push_back(split_of(times));
  }
  if (figures.splits.empty() || sum_of(mean_of(figures.splits)) <= 0)
    throw Error(Fault::corrupt, fmt::format("{}: no rank has recorded a step: {}", run.name,
                                            how_it_ended_without_steps(run)));
  figures.mean = mean_of(figures.splits);
  figures.step_ms = sum_of(figures.mean);
  const std::vector<double> sorted = sorted_ms(run);
  figures.median_ms = quantile(sorted, 0.5);
  figures.p99_ms = quantile(sorted, 0.99);
  figures.straggler = find_straggler(figures.times);
  figures.bins = bins_of(run);
  figures.samples_a_step = samples_a_step(run);
  return figures;
}

}  // namespace

std::optional<double> Comparison::serial_part() const {
  double above = 0;
  double below = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double shrinks = 1 - 1 / ranks_ratio(i);
    above += (1 / speed_up(i) - 1 / ranks_ratio(i)) * shrinks;
    below += shrinks * shrinks;
  }
  if (below == 0) return std::nullopt;
  return std::clamp(above / below, 0.0, 1.0);
}

double speed_up_at(double serial_part, double ranks_ratio) {
  return 1 / (serial_part + (1 - serial_part) / ranks_ratio);
}

Comparison compare(std::vector<RunFile> runs) {
  std::ranges::stable_sort(runs, {}, &RunFile::ranks);
  Comparison all;
  for (const RunFile& run : runs) all.figures.push_back(figures_of(run));
  all.is_rate_known = std::ranges::all_of(
      all.figures, [](const RunFigures& each) { return each.samples_a_step > 0; });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    RunFigures& figures = all.figures[i];
    if (!all.is_rate_known) figures.samples_a_step = runs[i].ranks;
    figures.rate = 1000 * figures.samples_a_step / figures.step_ms;
  }
  all.runs = std::move(runs);
  return all;
}

}  // namespace lockstep::tools
