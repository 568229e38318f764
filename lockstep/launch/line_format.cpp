// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/line_format.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view plain = "\033[0m";
constexpr std::string_view bold = "\033[1m";

// Legible on black and on white. Red is left to programs that mark errors with it.
constexpr std::array colors{36, 32, 33, 35, 94, 96, 92, 95};

std::string name_of(int rank) { return fmt::format("[{}]", rank); }

// Lines are compared with other hosts' logs, so the time is the time of day in UTC.
std::string time_text() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm date{};
  ::gmtime_r(&now.tv_sec, &date);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", date.tm_year + 1900,
                     date.tm_mon + 1, date.tm_mday, date.tm_hour, date.tm_min, date.tm_sec,
                     now.tv_nsec / 1'000'000);
}

std::string line_of(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string LineFormat::prefix(const LineSource& source) const {
  if (!(source.is_error ? colors_err_ : colors_out_)) return name_of(source.rank) + " ";
  const int color = colors[static_cast<std::size_t>(source.rank) % colors.size()];
  return fmt::format("\033[{}m{}{} ", color, name_of(source.rank), plain);
}

int LineFormat::width_of_prefix(int rank) { return static_cast<int>(name_of(rank).size()) + 1; }

std::string LineFormat::line(const LineSource& source, std::string_view text) const {
  if (!json_) return fmt::format("{}{}\n", prefix(source), text);
  return line_of({{"time", time_text()},
                  {"rank", source.rank},
                  {"local_rank", source.local_rank},
                  {"stream", source.is_error ? "stderr" : "stdout"},
                  {"line", text}});
}

std::string LineFormat::own_line(Level level, std::string_view text) const {
  if (json_)
    return line_of({{"time", time_text()},
                    {"level", level == Level::error ? "error" : "info"},
                    {"message", text}});
  if (colors_err_) return fmt::format("{}lockstep run: {}{}\n", bold, text, plain);
  return fmt::format("lockstep run: {}\n", text);
}

void say_error(LogFormat format, std::string_view text) {
  const bool colors = wants_colors(STDERR_FILENO);
  const std::string line = LineFormat(format, colors, colors).own_line(Level::error, text);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool wants_colors(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool refused = no_color != nullptr && *no_color != '\0';
  const bool capable = term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
  return !refused && capable && ::isatty(fd) == 1;
}

}  // namespace lockstep
