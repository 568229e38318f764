// SPDX-License-Identifier: Apache-2.0
#include "tools/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "lockstep/job/step_times.h"
#include "lockstep/job/straggler.h"
#include "tools/report/what_if.h"

namespace lockstep::tools {
namespace {

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format("  {:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string number(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}", value, decimals);
}

std::vector<StepPhase> shown_phases(const Comparison& all) {
  std::vector<StepPhase> shown;
  for (const StepPhase phase : phases_in_order)
    if (std::ranges::any_of(all.figures, [&](const RunFigures& run) {
          return part(run.mean, phase) >= run.step_ms / 1000;
        }))
      shown.push_back(phase);
  return shown;
}

std::string runs_text(const Comparison& all) {
  std::vector<Row> rows{{"run", "ranks", "hosts", "steps", "step ms", "p99 ms",
                         all.is_rate_known ? "samples/s" : "steps of ranks/s"}};
  const bool compared = all.runs.size() > 1;
  if (compared) rows.front().insert(rows.front().end(), {"speed-up", "efficiency"});
  for (std::size_t i = 0; i < all.runs.size(); ++i) {
    const RunFile& run = all.runs[i];
    const RunFigures& figures = all.figures[i];
    rows.push_back({run.name, std::to_string(run.ranks), std::to_string(run.hosts),
                    std::to_string(run.totals.empty() ? 0 : run.totals.front().times.steps),
                    number(figures.step_ms), figures.p99_ms > 0 ? number(figures.p99_ms) : "-",
                    number(figures.rate)});
    if (!compared) continue;
    rows.back().push_back(fmt::format("{:.2f}", all.speed_up(i)));
    rows.back().push_back(fmt::format("{:.0f} %", 100 * all.efficiency(i)));
  }
  return table(rows);
}

Row split_row(const std::string& name, const Split& split, const std::vector<StepPhase>& phases) {
  Row row{name};
  for (const StepPhase phase : phases) row.push_back(number(part(split, phase)));
  return row;
}

Row split_heading(const char* first, const std::vector<StepPhase>& phases) {
  Row row{first};
  for (const StepPhase phase : phases) row.emplace_back(name(phase));
  return row;
}

std::string splits_text(const Comparison& all) {
  const std::vector<StepPhase> phases = shown_phases(all);
  std::vector<Row> runs{split_heading("run", phases)};
  for (std::size_t i = 0; i < all.runs.size(); ++i)
    runs.push_back(split_row(all.runs[i].name, all.figures[i].mean, phases));
  std::string text = "\nA step in ms, mean of the ranks:\n" + table(runs);
  for (std::size_t i = 0; i < all.runs.size(); ++i) {
    const RunFigures& figures = all.figures[i];
    if (figures.times.size() < 2) continue;
    std::vector<Row> ranks{split_heading("rank", phases)};
    for (std::size_t rank = 0; rank < figures.times.size(); ++rank)
      ranks.push_back(
          split_row(std::to_string(figures.times[rank].rank), figures.splits[rank], phases));
    text += fmt::format("\nRanks of {}, in ms:\n", all.runs[i].name) + table(ranks);
    if (figures.straggler) text += "  " + describe(*figures.straggler) + "\n";
  }
  return text;
}

std::string scaling_text(const Comparison& all) {
  const auto serial = all.serial_part();
  if (!serial) return "";
  const int base = all.runs.front().ranks;
  std::string limit = "no limit shows";
  if (*serial > 0.99)
    limit = "more ranks do not help";
  else if (*serial > 0)
    limit = fmt::format("at most {:.3g} times {} rank{}, however many there are", 1 / *serial, base,
                        base == 1 ? "" : "s");
  return fmt::format("\nAmdahl's law: {:.1f} % of the work does not scale: {}.\n", 100 * *serial,
                     limit);
}

std::string indented(const std::string& text) {
  constexpr std::size_t width = 96;
  std::string lines;
  std::string rest = text;
  while (rest.size() > width) {
    const std::size_t space = rest.rfind(' ', width);
    if (space == rest.npos) break;
    lines += fmt::format("    {}\n", rest.substr(0, space));
    rest.erase(0, space + 1);
  }
  return lines + fmt::format("    {}\n", rest);
}

std::string answers_text(const std::vector<WhatIf>& answers) {
  std::string text;
  for (const WhatIf& each : answers)
    text += fmt::format("  {}: x{:.2f}, a step of {} ms\n", each.question, each.gain,
                        number(each.step_ms)) +
            indented(each.assumption);
  return text;
}

std::string what_if_text(const Comparison& all, const std::vector<int>& ranks) {
  const RunFile& run = all.runs[all.largest()];
  const RunFigures& figures = all.figures[all.largest()];
  const std::string answers =
      answers_text(changes(run, figures)) + answers_text(other_sizes(all, ranks));
  if (answers.empty()) return "";
  return fmt::format("\nWhat if, from {} ({} ms a step):\n", run.name, number(figures.step_ms)) +
         answers;
}

std::string notes_text(const Comparison& all) {
  std::string text;
  for (const RunFile& run : all.runs)
    if (run.ended != "finished")
      text += fmt::format("\n{}: this run {}.\n", run.name,
                          run.ended == "running" ? "still runs, or was killed" : "has failed");
  if (!all.is_rate_known)
    text += "\nSamples are not known for all runs: each rank's part of a step counts as one.\n";
  return text;
}

}  // namespace

std::string report_text(const Comparison& all, const std::vector<int>& ranks) {
  return runs_text(all) + splits_text(all) + scaling_text(all) + what_if_text(all, ranks) +
         notes_text(all);
}

}  // namespace lockstep::tools
