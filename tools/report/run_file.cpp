// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"

namespace lockstep::tools {
namespace {

using nlohmann::json;

constexpr std::string_view known_format = "lockstep-run-1";
constexpr int most_ranks_of_run = 1 << 20;
constexpr double longest_seconds = 1e9;

// --- Members -------------------------------------------------------------------------------------

[[noreturn]] void reject(const std::string& problem) { throw Error(Fault::corrupt, problem); }

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) reject(fmt::format("'{}' is missing", key));
  return *found;
}

const json& list(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_array()) reject(fmt::format("'{}' is not a list", key));
  return value;
}

const json& object_in(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_object()) reject(fmt::format("'{}' is not an object", key));
  return value;
}

// A finite, non-negative number.
double to_amount(const json& value, std::string_view what) {
  const bool is_amount =
      value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
  if (!is_amount) reject(fmt::format("'{}' is not a number of 0 or more", what));
  return value.get<double>();
}

double amount(const json& object, const char* key) { return to_amount(member(object, key), key); }

// 0 if absent or null.
double amount_if_any(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? 0 : to_amount(*found, key);
}

std::int64_t count(const json& object, const char* key, std::int64_t least, std::int64_t most) {
  const double value = amount(object, key);
  if (value != std::floor(value) || value < static_cast<double>(least) ||
      value > static_cast<double>(most))
    reject(fmt::format("'{}' is not a number from {} to {}", key, least, most));
  return static_cast<std::int64_t>(value);
}

std::string text(const json& value) {
  constexpr std::size_t longest = 512;
  return clean_text(value.is_string() ? value.get_ref<const std::string&>() : value.dump(),
                    longest);
}

std::string text_if_any(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? "" : text(*found);
}

double seconds_in(const json& value, std::string_view what) {
  const double seconds = to_amount(value, what);
  if (seconds > longest_seconds) reject(fmt::format("'{}' is too large", what));
  return seconds;
}

std::chrono::nanoseconds duration(const json& value, std::string_view what) {
  const std::chrono::duration<double> seconds(seconds_in(value, what));
  return std::chrono::round<std::chrono::nanoseconds>(seconds);
}

StepPhase phase_named(const std::string& wanted) {
  for (std::size_t i = 0; i < step_phases; ++i)
    if (const auto phase = static_cast<StepPhase>(i); wanted == name(phase)) return phase;
  return StepPhase::other;
}

std::size_t place_of(const std::string& phase) {
  return static_cast<std::size_t>(phase_named(phase));
}

// --- Parts ---------------------------------------------------------------------------------------

std::string command_in(const json& run) {
  std::string command = text_if_any(run, "program");
  const json& arguments = list(run, "arguments");
  for (const json& word : arguments) command.append(" ").append(text(word));
  return command;
}

std::string time_text(double unix_seconds) {
  if (unix_seconds <= 0 || unix_seconds > longest_seconds * 100) return "";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

std::vector<std::pair<std::string, std::string>> facts_of(const json& run) {
  std::vector<std::pair<std::string, std::string>> facts{
      {"program", command_in(run)},
      {"started", time_text(amount_if_any(run, "started"))},
      {"length", fmt::format("{:.1f} s", seconds_in(member(run, "seconds"), "seconds"))},
      {"lockstep", text_if_any(run, "lockstep")},
      {"torch", text_if_any(run, "torch")}};
  std::erase_if(facts, [](const auto& each) { return each.second.empty(); });
  return facts;
}

std::vector<RunLink> links_of(const json& run) {
  std::vector<RunLink> links;
  if (!run.contains("links")) return links;
  for (const json& link : list(run, "links"))
    links.push_back({.name = text_if_any(link, "name"),
                     .latency_s = amount(link, "latency_s"),
                     .bytes_per_s = amount(link, "bytes_per_s")});
  return links;
}

int rank_in(const std::string& key, int ranks) {
  int rank = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), rank);
  if (error != std::errc() || end != key.data() + key.size() || rank < 0 || rank >= ranks)
    reject(fmt::format("'{}' is not a rank of {}", clean_text(key, 32), ranks));
  return rank;
}

RankTimes total_of(const json& total, int ranks) {
  RankTimes times{.rank = static_cast<int>(count(total, "rank", 0, ranks - 1))};
  times.times.steps = count(total, "steps", 0, std::int64_t{1} << 52);
  for (const auto& [phase, seconds] : object_in(total, "seconds").items())
    times.times.spent[place_of(phase)] += duration(seconds, phase);
  if (total.contains("waited_for"))
    for (const auto& [rank, seconds] : object_in(total, "waited_for").items())
      times.times.waited_for[rank_in(rank, ranks)] = duration(seconds, rank);
  return times;
}

std::vector<RankTimes> totals_of(const json& run, int ranks) {
  std::vector<RankTimes> totals;
  for (const json& total : list(run, "totals")) totals.push_back(total_of(total, ranks));
  std::ranges::sort(totals, {}, &RankTimes::rank);
  const auto twice = std::ranges::adjacent_find(totals, {}, &RankTimes::rank);
  if (twice != totals.end()) reject(fmt::format("'totals' has rank {} twice", twice->rank));
  return totals;
}

StepRow row_of(const json& row, const std::vector<std::string>& columns) {
  if (!row.is_array() || row.size() != columns.size())
    reject(fmt::format("a row of 'steps' does not have {} numbers", columns.size()));
  StepRow step;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double seconds = seconds_in(row[i], columns[i]);
    (columns[i] == "seconds" ? step.seconds : step.phases[place_of(columns[i])]) += seconds;
  }
  return step;
}

void read_steps(const json& run, RunFile& file) {
  if (!run.contains("steps")) return;
  const json& steps = object_in(run, "steps");
  constexpr std::int64_t most = std::int64_t{1} << 52;
  file.first_step = count(steps, "first", 0, most);
  file.every = count(steps, "every", 1, most);
  std::vector<std::string> columns;
  for (const json& column : list(steps, "columns")) columns.push_back(text(column));
  for (const json& rank : list(steps, "ranks")) {
    auto& rows = file.steps.emplace_back();
    if (!rank.is_array()) reject("'ranks' of 'steps' is not a list of lists");
    for (const json& row : rank) rows.push_back(row_of(row, columns));
  }
  if (file.steps.size() > static_cast<std::size_t>(file.ranks))
    reject(fmt::format("'steps' has {} ranks of {}", file.steps.size(), file.ranks));
}

// Omits a NaN, which is null in JSON.
RunScalar scalar_of(const json& scalar) {
  RunScalar read;
  const json& steps = list(scalar, "steps");
  const json& values = list(scalar, "values");
  if (steps.size() != values.size()) reject("a scalar has more steps than values, or fewer");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!values[i].is_number()) continue;
    read.steps.push_back(to_amount(steps[i], "steps"));
    read.values.push_back(values[i].get<double>());
  }
  return read;
}

RunFile run_of(const json& run) {
  RunFile file;
  file.about = facts_of(run);
  file.ended = text(member(run, "ended"));
  file.ranks = static_cast<int>(count(run, "ranks", 1, most_ranks_of_run));
  file.hosts = static_cast<int>(count(run, "hosts", 1, file.ranks));
  if (run.contains("host_of_rank"))
    for (const json& host : list(run, "host_of_rank")) file.host_of_rank.push_back(text(host));
  if (run.contains("options"))
    for (const auto& [key, value] : object_in(run, "options").items())
      file.options[clean_text(key, 128)] = text(value);
  file.samples = amount_if_any(run, "samples");
  file.links = links_of(run);
  file.all_reduce_bytes = amount_if_any(run, "all_reduce_bytes_per_step");
  file.totals = totals_of(run, file.ranks);
  read_steps(run, file);
  if (run.contains("scalars"))
    for (const auto& [key, value] : object_in(run, "scalars").items())
      file.scalars[clean_text(key, 128)] = scalar_of(value);
  return file;
}

// Rejects other files, naming the likely format.
json parse(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) reject("the file is empty");
  json run = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (run.is_discarded()) reject("this is not JSON, or a part of it is missing");
  const std::string format = run.is_object() ? text_if_any(run, "format") : "";
  if (format.empty()) reject("this is JSON, but not a run.json of Lockstep");
  if (format != known_format)
    reject(fmt::format("its format is '{}'; this version of lockstep report reads '{}'", format,
                       known_format));
  return run;
}

}  // namespace

RunFile read_run_file(const std::string& path) try {
  RunFile file = run_of(parse(read_file(path)));
  file.name = clean_text(std::filesystem::path(path).filename().string(), 64);
  return file;
} catch (const Error& error) {
  if (error.fault() != Fault::corrupt) throw;
  throw Error(Fault::corrupt, fmt::format("{}: {}", path, bare_text(error)));
} catch (const json::exception& error) {
  throw Error(Fault::corrupt, fmt::format("{}: not a run.json: {}", path, error.what()));
}

}  // namespace lockstep::tools
