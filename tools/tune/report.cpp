// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

using nlohmann::ordered_json;

std::string number_text(double value) { return fmt::format("{:.{}f}", value, value < 100 ? 1 : 0); }

std::string memory_text(std::int64_t bytes) {
  constexpr double gib = 1 << 30;
  return bytes > 0 ? fmt::format("{:.2f} GiB", static_cast<double>(bytes) / gib) : "";
}

// For a shell, if needed.
std::string quoted(const std::string& word) {
  constexpr const char* plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
  std::string text = "'";
  for (const char character : word)
    text += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return text + "'";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char character : text) {
    if (character == '<')
      out += "&lt;";
    else if (character == '&')
      out += "&amp;";
    else
      out += character;
  }
  return out;
}

std::string row(const TunedDivision& tuned, bool is_best) {
  const Division& division = tuned.division;
  std::string line = fmt::format("{} {:>5} {:>8} {:>6}", is_best ? '*' : ' ', division.ranks,
                                 division.threads, division.batch);
  if (const auto& rate = tuned.samples_per_second)
    line += fmt::format("  {:>10}  {:<19}  {:>9}  {:>4.0f} %", number_text(rate->median),
                        fmt::format("({} - {})", number_text(rate->low), number_text(rate->high)),
                        memory_text(tuned.memory), 100 * tuned.wait);
  else
    line +=
        fmt::format("  {:>10}  {}", "-", tuned.problem.empty() ? "not measured" : tuned.problem);
  const std::string options = clean_text(fmt::format("{}", fmt::join(division.options, " ")));
  return line + (options.empty() ? "" : "  " + options) + "\n";
}

}  // namespace

std::string shell_command(const Division& division, const std::vector<std::string>& program) {
  std::string text = fmt::format("lockstep run -n {}", division.ranks);
  for (const std::string& word : command_for(division, program)) text += " " + quoted(word);
  return text;
}

std::string table_of(const Tuning& tuning, const TunedProgram& program) {
  std::string text =
      fmt::format("samples/s with a global batch of {} on {} core{}\n\n", program.global_batch,
                  program.cores, program.cores == 1 ? "" : "s");
  text += "  RANKS  THREADS  BATCH   SAMPLES/S  LOW - HIGH              MEMORY    WAIT\n";
  for (std::size_t i = 0; i < tuning.divisions.size(); ++i)
    text += row(tuning.divisions[i], tuning.best == i);
  for (const TunedDivision& tuned : tuning.divisions)
    if (!tuned.output.empty())
      text += fmt::format("\n{}: {}:\n{}", describe(tuned.division), tuned.problem, tuned.output);
  if (!tuning.best) return text;
  const Division& best = tuning.divisions[*tuning.best].division;
  return text + "\nbest: " + shell_command(best, program.program) + "\n";
}

std::string json_of(const Tuning& tuning, const TunedProgram& program) {
  ordered_json divisions = ordered_json::array();
  for (const TunedDivision& tuned : tuning.divisions) {
    ordered_json each{{"ranks", tuned.division.ranks},
                      {"threads", tuned.division.threads},
                      {"batch", tuned.division.batch},
                      {"options", tuned.division.options},
                      {"runs", tuned.runs}};
    if (const auto& rate = tuned.samples_per_second) {
      each["samples_per_second"] = rate->median;
      each["low"] = rate->low;
      each["high"] = rate->high;
      each["memory_bytes"] = tuned.memory;
      each["wait"] = tuned.wait;
    } else {
      each["problem"] = tuned.problem;
    }
    divisions.push_back(std::move(each));
  }
  ordered_json all{{"program", program.program},
                   {"global_batch", program.global_batch},
                   {"cores", program.cores},
                   {"divisions", std::move(divisions)}};
  all["best"] = tuning.best ? ordered_json(*tuning.best) : ordered_json();
  if (tuning.best)
    all["command"] = shell_command(tuning.divisions[*tuning.best].division, program.program);
  return all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string svg_of(const Tuning& tuning, const TunedProgram& program) {
  constexpr int width = 860;
  constexpr int left = 300;
  constexpr int right = 90;
  constexpr int height_of_row = 30;
  constexpr int top = 40;
  constexpr const char* text_color = "#808080";  // Readable on white and black.
  double most = 1e-9;
  for (const TunedDivision& tuned : tuning.divisions)
    if (tuned.samples_per_second) most = std::max(most, tuned.samples_per_second->high);
  const auto x = [&](double speed) { return left + (width - left - right) * speed / most; };
  const auto rows = static_cast<int>(tuning.divisions.size());
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" )"
      R"(font-family="sans-serif" font-size="14" fill="{}">)"
      "\n<text x=\"{}\" y=\"20\">samples/s with a global batch of {} on {} cores</text>\n",
      width, top + height_of_row * rows + 10, text_color, left, program.global_batch,
      program.cores);
  for (int i = 0; i < rows; ++i) {
    const TunedDivision& tuned = tuning.divisions[static_cast<std::size_t>(i)];
    const int y = top + height_of_row * i + height_of_row / 2;
    const bool is_best = tuning.best == static_cast<std::size_t>(i);
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{}>{}</text>\n", left - 12,
                       y + 5, is_best ? " font-weight=\"bold\"" : "",
                       escaped(clean_text(describe(tuned.division), 40)));
    const auto& rate = tuned.samples_per_second;
    if (!rate) {
      out += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", left, y + 5,
                         escaped(clean_text(tuned.problem, 60)));
      continue;
    }
    const char* const color = is_best ? "#2f9e6e" : "#8aa0b8";
    out += fmt::format(
        "<path d=\"M{} {}H{:.1f}\" stroke=\"{}\" stroke-width=\"14\" stroke-opacity=\"0.6\"/>\n"
        "<path d=\"M{:.1f} {}H{:.1f}\" stroke=\"{}\" stroke-width=\"2\"/>\n"
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
        left, y, x(rate->median), color, x(rate->low), y, x(rate->high), text_color, width - 6,
        y + 5, number_text(rate->median));
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::tools
