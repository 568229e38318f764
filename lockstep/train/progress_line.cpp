// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace lockstep::train {
namespace {

constexpr std::size_t narrowest_bar = 10;
constexpr std::size_t widest_bar = 40;

// `format` has one conversion, for a double.
std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

int percent(const ProgressState& state) {
  if (state.steps >= state.total_steps) return 100;
  return static_cast<int>(100.0 * static_cast<double>(state.steps) /
                          static_cast<double>(state.total_steps));
}

std::string steps(const ProgressState& state) {
  return std::to_string(state.steps) + "/" + std::to_string(state.total_steps);
}

std::string amount(double value) {
  if (value < 100) return formatted("%.3g", value);
  if (value < 1e5) return formatted("%.0f", value);
  return value < 1e8 ? formatted("%.0fk", value / 1e3) : formatted("%.0fM", value / 1e6);
}

// Examples: "0:07", "12:07" and "1:12:07".
std::string clock_time(double seconds) {
  constexpr double longest = 1e9;  // Some thirty years.
  const auto all = std::llround(std::min(seconds, longest));
  char text[64];
  if (all < 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld", all / 60, all % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", all / 3600, all / 60 % 60, all % 60);
  return text;
}

// Starts with ", " unless empty.
std::string measures(const ProgressState& state) {
  std::string text;
  const double seconds = state.elapsed.count();
  const std::int64_t made = state.steps - state.earlier_steps;
  if (seconds > 0 && made > 0) {
    const bool counted = state.samples > 0;
    text += ", ";
    text += amount(static_cast<double>(counted ? state.samples : made) / seconds);
    text += counted ? " samples/s" : " steps/s";
  }
  if (state.loss) text += formatted(", loss %.4g", *state.loss);
  if (state.steps >= state.total_steps) {
    text += ", took " + clock_time(seconds);
  } else if (made > 0) {
    const auto left = static_cast<double>(state.total_steps - state.steps);
    text += ", " + clock_time(seconds / static_cast<double>(made) * left);
    text += " left";
  }
  if (!state.phases.empty()) text += ", " + state.phases;
  return text;
}

std::string bar(const ProgressState& state, std::size_t width) {
  const auto done = width * static_cast<std::size_t>(percent(state)) / 100;
  std::string text = " [";
  text.append(done, '#').append(width - done, '.');
  return text + "]";
}

}  // namespace

std::string progress_line(const ProgressState& state) {
  std::string text = state.label;
  if (!text.empty()) text += ": ";
  text += steps(state) + " steps (" + std::to_string(percent(state)) + "%)";
  return text + measures(state);
}

std::string progress_bar(const ProgressState& state, int columns) {
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 1));
  std::string text = state.label;
  if (!text.empty()) text += ' ';
  text += formatted("%3.0f%%", percent(state));
  const std::string rest = ' ' + steps(state) + measures(state);

  const std::size_t taken = text.size() + rest.size() + bar(state, 0).size();
  if (taken + narrowest_bar <= room) text += bar(state, std::min(room - taken, widest_bar));
  return (text + rest).substr(0, room);
}

}  // namespace lockstep::train
