// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> level_names{"error", "warning", "info", "debug"};

std::string_view wanted_level() {
  const char* text = ::getenv("LOCKSTEP_LOG");  // read_variable() would call log().
  return text == nullptr || *text == '\0' || is_service_link(text) ? "warning" : text;
}

// -1: off.
std::optional<int> number_of(std::string_view wanted) {
  for (std::size_t i = 0; i < level_names.size(); ++i)
    if (level_names[i] == wanted) return static_cast<int>(i);
  return wanted == "off" ? std::optional(-1) : std::nullopt;
}

void write_to_stderr(LogLevel level, std::string_view message) {
  const std::string line =
      fmt::format("lockstep {}: {}\n", level_names[static_cast<std::size_t>(level)], message);
  // One write keeps the lines of several processes whole.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::mutex sink_mutex;
std::shared_ptr<const LogSink> sink = std::make_shared<LogSink>(write_to_stderr);

}  // namespace

void set_log_sink(LogSink replacement) {
  const std::lock_guard lock(sink_mutex);
  sink = std::make_shared<LogSink>(replacement ? std::move(replacement) : write_to_stderr);
}

void log(LogLevel level, std::string_view message) {
  static const int highest =
      number_of(wanted_level()).value_or(static_cast<int>(LogLevel::warning));
  if (static_cast<int>(level) > highest) return;
  std::unique_lock lock(sink_mutex);
  const auto current = sink;
  lock.unlock();
  (*current)(level, message);
}

void require_known_log_level() {
  const char* const set = read_variable("LOCKSTEP_LOG");
  const std::string_view wanted = set == nullptr ? wanted_level() : set;
  require(number_of(wanted).has_value(), [&] {
    return fmt::format("LOCKSTEP_LOG='{}' is no level: error, warning, info, debug or off",
                       clean_text(wanted, 100));
  });
}

}  // namespace lockstep
