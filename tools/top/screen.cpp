// SPDX-License-Identifier: Apache-2.0
#include "tools/top/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/job/straggler.h"
#include "tools/shown_jobs.h"

namespace lockstep::tools {
namespace {

struct Drawn {
  const char* phase;
  char letter;
  int color;  // One of 256: dark, for white letters.
};

constexpr std::array<Drawn, step_phases> drawn_phases{{{"data", 'd', 94},
                                                       {"forward", 'f', 25},
                                                       {"backward", 'b', 61},
                                                       {"reduce", 'r', 30},
                                                       {"wait", 'w', 124},
                                                       {"optimizer", 'o', 28},
                                                       {"checkpoint", 'c', 90},
                                                       {"other", '.', 240}}};

std::string shown(const std::string& text) { return clean_text(text, 256); }

// Between characters, each of which counts as one column.
std::string cut(const std::string& line, int columns) {
  int used = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80;
    if (begins && ++used > columns) return line.substr(0, i);
  }
  return line;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes <= 0) return "";
  constexpr double gib = 1 << 30;
  const double size = static_cast<double>(bytes);
  return size >= gib ? fmt::format("{:.1f} GiB", size / gib)
                     : fmt::format("{:.0f} MiB", size / gib * 1024);
}

std::string rate_text(double rate) {
  if (rate <= 0) return "";
  return rate < 100 ? fmt::format("{:.1f}", rate) : fmt::format("{:.0f}", rate);
}

double share_of(const RankStatus& rank, const std::string& phase) {
  const auto found = rank.shares.find(phase);
  return found == rank.shares.end() ? 0 : found->second;
}

std::string waits_text(const RankStatus& rank) {
  const double share = share_of(rank, "wait");
  if (rank.latest_rank < 0 || share < 0.005) return "";
  return fmt::format("{} ({:.0f} %)", rank.latest_rank, 100 * share);
}

// Rounds the ends of phases: their sum is the whole bar.
std::string bar(const RankStatus& rank, int width, bool colors) {
  if (rank.shares.empty()) return std::string(static_cast<std::size_t>(width), ' ');
  std::string text;
  double sum = 0;
  int drawn = 0;
  for (const Drawn& each : drawn_phases) {
    sum += share_of(rank, each.phase);
    const int end = std::clamp(static_cast<int>(std::lround(sum * width)), drawn, width);
    const std::string letters(static_cast<std::size_t>(end - drawn), each.letter);
    drawn = end;
    if (letters.empty()) continue;
    text += colors ? fmt::format("\033[97;48;5;{}m{}\033[0m", each.color, letters) : letters;
  }
  return text + std::string(static_cast<std::size_t>(width - drawn), ' ');
}

// Columns for which the terminal has space; the least important go first. The bar gets the
// rest.
struct Columns {
  static constexpr int least_bar = 12;
  static constexpr int most_bar = 100;
  static constexpr int fixed = 4 + 1 + 9;  // RANK STATE
  static constexpr int step_width = 9;
  static constexpr int rate_width = 9;
  static constexpr int waits_width = 13;
  static constexpr int memory_width = 10;

  explicit Columns(int columns) {
    int left = columns - fixed - least_bar - 2;
    const auto take = [&](int width) {
      const bool fits = left >= width;
      if (fits) left -= width;
      return fits;
    };
    waits = take(waits_width);
    step = take(step_width);
    rate = take(rate_width);
    memory = take(memory_width);
    bar = std::clamp(least_bar + left, 1, most_bar);
  }

  int bar = least_bar;
  bool step = false;
  bool rate = false;
  bool waits = false;
  bool memory = false;
};

std::string row(const Columns& columns, const std::array<std::string, 7>& cells) {
  const auto& [rank, state, step, rate, bar, waits, memory] = cells;
  std::string line = fmt::format("{:>4} {:<9}", rank, state);
  if (columns.step) line += fmt::format("{:>{}}", step, Columns::step_width);
  if (columns.rate) line += fmt::format("{:>{}}", rate, Columns::rate_width);
  line += "  " + bar;
  if (columns.waits) line += fmt::format("  {:<{}}", waits, Columns::waits_width - 2);
  if (columns.memory) line += fmt::format("{:>{}}", memory, Columns::memory_width);
  return line;
}

std::string heading(const Columns& columns) {
  const std::string time = cut(fmt::format("{:<{}}", "TIME", columns.bar), columns.bar);
  return row(columns, {"RANK", "STATE", "STEP", "STEPS/S", time, "WAITS FOR", "MEMORY"});
}

std::string line_of(const RankStatus& rank, const Columns& columns, bool colors) {
  return row(columns,
             {std::to_string(rank.rank), cut(shown(rank.state), 9),
              rank.step > 0 ? std::to_string(rank.step) : "", rate_text(rank.steps_per_second),
              bar(rank, columns.bar, colors), waits_text(rank), bytes_text(rank.memory)});
}

std::string title_of(const JobStatus& job) {
  const std::string id = short_id(job.job_id);
  if (job.state == no_answer)
    return fmt::format("{}  the launcher, process {}, {}", shown(id), job.agent_pid, no_answer);
  std::string title = fmt::format("{}  {}  {}  up {}", shown(id), shown(job.host), shown(job.state),
                                  uptime_text(job.seconds));
  if (job.restarts > 0) title += fmt::format("  restarts {}", job.restarts);
  for (const RankStatus& rank : job.ranks)
    if (rank.group_size > 0 && rank.state != "ended") {
      title += fmt::format("  {} ranks in the group", rank.group_size);
      break;
    }
  if (job.nodes > 1) title += fmt::format("  host {} of {}", job.node, job.nodes);
  return title + "  " + shown(job.program);
}

std::string legend(bool colors) {
  std::string text;
  for (const Drawn& each : drawn_phases) {
    if (!text.empty()) text += ' ';
    text += colors ? fmt::format("\033[97;48;5;{}m {} \033[0m", each.color, each.phase)
                   : fmt::format("{}={}", each.letter, each.phase);
  }
  return text;
}

std::string verdict_on(const JobStatus& job) {
  std::vector<RankTimes> times;
  for (const RankStatus& rank : job.ranks) times.push_back(times_of(rank));
  const auto straggler = find_straggler(times);
  return straggler ? describe(*straggler) : "";
}

std::vector<std::string> lines_of(const std::vector<JobStatus>& jobs, const Screen& screen) {
  const Columns columns(screen.columns);
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line) { lines.push_back(cut(line, screen.columns)); };
  if (jobs.empty()) add(no_jobs);
  for (const JobStatus& job : jobs) {
    if (!lines.empty()) add("");
    add(title_of(job));
    if (job.ranks.empty()) continue;
    add(heading(columns));
    for (const RankStatus& rank : job.ranks) {
      const std::string line = line_of(rank, columns, screen.colors);
      screen.colors ? lines.push_back(line) : add(line);
    }
    if (const std::string verdict = verdict_on(job); !verdict.empty()) add(verdict);
  }
  if (!jobs.empty()) screen.colors ? lines.push_back(legend(true)) : add(legend(false));
  return lines;
}

}  // namespace

std::string draw(const std::vector<JobStatus>& jobs, const Screen& screen) {
  std::vector<std::string> lines = lines_of(jobs, screen);
  if (screen.rows > 0) lines.resize(std::min(lines.size(), static_cast<std::size_t>(screen.rows)));
  std::string text;
  for (const std::string& line : lines) {
    text.append(line, 0, line.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::tools
