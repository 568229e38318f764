// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/run_record.h"

#include <torch/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"

namespace lockstep::run_log {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view format = "lockstep-run-1";
constexpr int digits = 5;  // In a step's seconds.

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

Json all_phases() {
  Json names = Json::array();
  for (std::size_t i = 0; i < step_phases; ++i) names.push_back(name(static_cast<StepPhase>(i)));
  return names;
}

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  std::string bytes = read_proc_file("/proc/self/cmdline").value_or("");
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', begin), bytes.size());
    words.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.empty()) words.emplace_back();
  return words;
}

// Ranks outside of `job_ranks` count together.
Json json_of(int rank, std::int64_t steps, const StepTimes& times,
             const std::vector<int>& job_ranks) {
  Json seconds = Json::object();
  for (std::size_t i = 0; i < step_phases; ++i)
    seconds[name(static_cast<StepPhase>(i))] = seconds_of(times.spent[i]);
  Json waited = Json::object();
  std::chrono::nanoseconds outside{0};
  for (const auto& [other, time] : times.waited_for) {
    const auto found = std::ranges::find(job_ranks, other);
    if (found == job_ranks.end())
      outside += time;
    else
      waited[std::to_string(found - job_ranks.begin())] = seconds_of(time);
  }
  return {{"rank", rank},
          {"steps", steps},
          {"seconds", seconds},
          {"waited_for", waited},
          {"waited_for_outside", seconds_of(outside)}};
}

Json json_of(const LinkSpeed& link) {
  return {{"name", link.name}, {"latency_s", link.latency_s}, {"bytes_per_s", link.bytes_per_s}};
}

void append(std::string& text, const StepRow& row) {
  std::array<char, 32> digits_of{};
  char separator = '[';
  for (const float seconds : row) {
    const auto end = std::to_chars(digits_of.data(), digits_of.data() + digits_of.size(), seconds,
                                   std::chars_format::general, digits);
    text += separator;
    text.append(digits_of.data(), end.ptr);
    separator = ',';
  }
  text += ']';
}

template <class Element>
void keep_every_second(std::vector<Element>& elements) {
  for (std::size_t i = 0; 2 * i < elements.size(); ++i) elements[i] = elements[2 * i];
  elements.resize((elements.size() + 1) / 2);
}

}  // namespace

RunRecord::RunRecord(RunFacts facts, std::size_t most_rows, std::size_t most_values)
    : facts_(std::move(facts)),
      most_rows_(most_rows),
      most_values_(most_values),
      ranks_(facts_.host_of_rank.size()) {}

void RunRecord::add(const RankReport& report) {
  OfRank& rank = ranks_[static_cast<std::size_t>(report.rank)];
  for (const StepRow& row : report.rows) {
    if (rank.steps++ % every_ != 0) continue;
    rank.rows.push_back(row);
    if (++rows_ > most_rows_) thin_rows();
  }
  rank.times = report.times;
  samples_ += report.samples;
}

void RunRecord::thin_rows() {
  every_ *= 2;
  rows_ = 0;
  for (OfRank& rank : ranks_) {
    keep_every_second(rank.rows);
    rows_ += rank.rows.size();
  }
}

void RunRecord::add(const ScalarMean& mean) {
  Series& series = scalars_[mean.name];
  if (series.values_seen++ % series.every != 0) return;
  series.steps.push_back(mean.step);
  series.values.push_back(mean.value);
  if (series.steps.size() <= most_values_) return;
  series.every *= 2;
  keep_every_second(series.steps);
  keep_every_second(series.values);
}

// The largest part: avoids an object per number.
std::string RunRecord::rows_json() const {
  std::string text = "[";
  text.reserve(rows_ * 90);
  for (const OfRank& rank : ranks_) {
    text += text.size() == 1 ? "\n  [" : ",\n  [";
    for (const StepRow& row : rank.rows) {
      if (&row != rank.rows.data()) text += ",\n   ";
      append(text, row);
    }
    text += ']';
  }
  return text + "]";
}

std::string RunRecord::json(std::string_view ended, double seconds) const {
  std::vector<std::string> command = command_line();
  Json run{{"format", format},
           {"lockstep", LOCKSTEP_VERSION},
           {"torch", TORCH_VERSION},
           {"program", command.front()},
           {"arguments", std::vector(command.begin() + 1, command.end())},
           {"started", facts_.started},
           {"seconds", seconds},
           {"ended", ended},
           {"ranks", ranks_.size()},
           {"hosts", 1 + std::ranges::max(facts_.host_of_rank)},
           {"host_of_rank", facts_.host_of_rank},
           {"options", facts_.options},
           {"samples", samples_},
           {"links", Json::array()},
           {"all_reduce_bytes_per_step", all_reduce_bytes_},
           {"phases", all_phases()},
           {"totals", Json::array()},
           {"scalars", Json::object()}};
  for (const LinkSpeed& link : facts_.links) run["links"].push_back(json_of(link));
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    run["totals"].push_back(
        json_of(static_cast<int>(rank), ranks_[rank].steps, ranks_[rank].times, facts_.job_ranks));
  for (const auto& [name, series] : scalars_)
    run["scalars"][name] = {{"steps", series.steps}, {"values", series.values}};
  Json columns = all_phases();
  columns.insert(columns.begin(), "seconds");
  const Json steps{{"first", facts_.first_step}, {"every", every_}, {"columns", columns}};

  constexpr auto replaced = Json::error_handler_t::replace;  // Arguments need not be UTF-8.
  std::string text = run.dump(-1, ' ', false, replaced);
  std::string of_steps = steps.dump();
  text.pop_back();  // The closing braces come last.
  of_steps.pop_back();
  return text + ",\n\"steps\":" + of_steps + ",\"ranks\":" + rows_json() + "}}\n";
}

}  // namespace lockstep::run_log
