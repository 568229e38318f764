// SPDX-License-Identifier: Apache-2.0
#include "tools/report/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/job/step_times.h"

namespace lockstep::tools {
namespace {

// All ranks wait for the slowest.
class Step {
 public:
  Step(const std::vector<Split>& splits, double ms) : splits_(splits), ms_(ms) {}

  double ms() const { return ms_; }

  // The step's length if each rank spends only `share(phase)` of its time in its own phases. Waits
  // with other causes than the slowest rank stay.
  template <class Share>
  double with(const Share& share) const {
    double now = 0;
    double then = 0;
    for (const Split& split : splits_) {
      now = std::max(now, own(split, [](StepPhase) { return 1.0; }));
      then = std::max(then, own(split, share));
    }
    return ms_ - now + then;
  }

  // If every rank had the mean work.
  double evenly() const {
    double most = 0;
    double sum = 0;
    for (const Split& split : splits_) {
      const double work = own(split, [](StepPhase) { return 1.0; });
      most = std::max(most, work);
      sum += work;
    }
    return ms_ - most + sum / static_cast<double>(splits_.size());
  }

 private:
  template <class Share>
  static double own(const Split& split, const Share& share) {
    double sum = 0;
    for (const StepPhase phase : phases_in_order)
      if (phase != StepPhase::wait && phase != StepPhase::reduce)
        sum += part(split, phase) * share(phase);
    return sum;
  }

  const std::vector<Split>& splits_;
  const double ms_;
};

// Null if the link's speed is unknown.
const RunLink* link_of(const RunFile& run) {
  const bool is_known = run.ranks > 1 && !run.links.empty() && run.links.front().bytes_per_s > 0;
  return is_known && run.all_reduce_bytes > 0 ? &run.links.front() : nullptr;
}

// Sequential messages of an all_reduce, and how often its bytes pass the link.
double latencies(int ranks) { return 2 * std::ceil(std::log2(ranks)); }
double passes(int ranks) { return 2.0 * (ranks - 1) / ranks; }

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.3g} GB", bytes / 1e9);
  return bytes >= 1e6 ? fmt::format("{:.3g} MB", bytes / 1e6)
                      : fmt::format("{:.3g} KB", bytes / 1e3);
}

std::string link_text(const RunLink& link, double bytes) {
  return fmt::format("{} a step over {} ({:.3g} us, {}/s)", bytes_text(bytes), link.name,
                     1e6 * link.latency_s, bytes_text(link.bytes_per_s));
}

WhatIf half_the_bytes(const RunFile& run, const RunFigures& figures) {
  const double reduce = part(figures.mean, StepPhase::reduce);
  const RunLink* const link = link_of(run);
  if (link == nullptr)
    return {.question = "with gradients sent as bfloat16",
            .step_ms = figures.step_ms - reduce / 2,
            .assumption =
                "Half of the bytes take half of the time in reduce; the link is not "
                "known."};
  const AllReduce measured{*link, run.ranks};
  const double saved = reduce * (1 - measured.seconds(run.all_reduce_bytes / 2, run.ranks) /
                                         measured.seconds(run.all_reduce_bytes, run.ranks));
  return {.question = "with gradients sent as bfloat16",
          .step_ms = figures.step_ms - saved,
          .assumption = "The time in reduce shrinks as an all_reduce of half of " +
                        link_text(*link, run.all_reduce_bytes) + "."};
}

std::optional<WhatIf> without(StepPhase phase, const Step& step, std::string question,
                              std::string assumption) {
  const double ms = step.with([&](StepPhase each) { return each == phase ? 0.0 : 1.0; });
  if (ms >= step.ms() || ms <= 0) return std::nullopt;
  return WhatIf{
      .question = std::move(question), .step_ms = ms, .assumption = std::move(assumption)};
}

// In milliseconds; empty if unknown.
std::optional<double> reduce_on(const RunFile& run, const RunFigures& figures, int ranks) {
  if (run.ranks == 1) return std::nullopt;
  const double now = part(figures.mean, StepPhase::reduce);
  const RunLink* const link = link_of(run);
  if (link == nullptr) return now * passes(ranks) / passes(run.ranks);
  const AllReduce measured{*link, run.ranks};
  return now * measured.seconds(run.all_reduce_bytes, ranks) /
         measured.seconds(run.all_reduce_bytes, run.ranks);
}

std::string assumption_of(const RunFile& run, int ranks) {
  const RunLink* const link = link_of(run);
  const std::string same = "Each rank has its own cores and as many samples as now; ";
  if (link == nullptr)
    return same + "reduce grows with the bytes of an all_reduce, as the link is not known.";
  return same + fmt::format("reduce grows as an all_reduce of {} from {} to {} ranks.",
                            link_text(*link, run.all_reduce_bytes), run.ranks, ranks);
}

// From the run's own split.
std::optional<WhatIf> on(const RunFile& run, const RunFigures& figures, int ranks) {
  const auto reduce = reduce_on(run, figures, ranks);
  if (!reduce) return std::nullopt;
  const double ms = figures.step_ms - part(figures.mean, StepPhase::reduce) + *reduce;
  return WhatIf{.question = fmt::format("on {} ranks", ranks),
                .step_ms = ms,
                .gain = figures.step_ms / ms * ranks / run.ranks,
                .assumption = assumption_of(run, ranks)};
}

// From the fit of all runs.
std::optional<WhatIf> by_amdahl(const Comparison& all, int ranks) {
  const auto serial = all.serial_part();
  if (!serial) return std::nullopt;
  const RunFile& run = all.runs[all.largest()];
  const double ratio = static_cast<double>(ranks) / all.runs.front().ranks;
  const double gain =
      speed_up_at(*serial, ratio) / speed_up_at(*serial, all.ranks_ratio(all.largest()));
  return WhatIf{
      .question = fmt::format("on {} ranks, by Amdahl's law", ranks),
      .step_ms = all.figures[all.largest()].step_ms * ranks / run.ranks / gain,
      .gain = gain,
      .assumption = fmt::format(
          "The {:.1f} % of the work that does not scale between {} and {} ranks stays as it is.",
          100 * *serial, all.runs.front().ranks, run.ranks)};
}

}  // namespace

double AllReduce::seconds(double bytes, int ranks) const {
  if (ranks < 2) return 0;
  return link.latency_s * latencies(ranks) / latencies(measured_among) +
         bytes / link.bytes_per_s * passes(ranks) / passes(measured_among);
}

std::vector<WhatIf> changes(const RunFile& run, const RunFigures& figures) {
  const Step step(figures.splits, figures.step_ms);
  std::vector<WhatIf> all;
  const auto add = [&](std::optional<WhatIf> each) {
    if (each) all.push_back(std::move(*each));
  };
  add(without(StepPhase::data, step, "with batches ready in time",
              "The loop never waits for data; more threads or a cache make it so."));
  add(without(StepPhase::checkpoint, step, "with checkpoints that cost the loop nothing",
              "Saving happens in the background only."));
  if (run.ranks > 1) {
    add(WhatIf{.question = "with the work spread evenly over the ranks",
               .step_ms = step.evenly(),
               .assumption = "Each rank works as long as the ranks do in the mean now."});
    add(half_the_bytes(run, figures));
  }
  for (WhatIf& each : all) each.gain = figures.step_ms / each.step_ms;
  constexpr double least = 1.01;
  std::erase_if(all, [](const WhatIf& each) { return each.gain < least; });
  std::ranges::stable_sort(all, std::ranges::greater(), &WhatIf::gain);
  return all;
}

std::vector<WhatIf> other_sizes(const Comparison& all, const std::vector<int>& ranks) {
  const std::size_t largest = all.largest();
  const int now = all.runs[largest].ranks;
  std::vector<WhatIf> answers;
  for (const int each : ranks.empty() ? std::vector<int>{2 * now, 4 * now} : ranks) {
    if (each == now) continue;
    if (auto answer = on(all.runs[largest], all.figures[largest], each))
      answers.push_back(std::move(*answer));
    if (auto answer = by_amdahl(all, each)) answers.push_back(std::move(*answer));
  }
  return answers;
}

}  // namespace lockstep::tools
