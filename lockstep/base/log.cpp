// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> level_names{"error", "warning", "info", "debug"};

int threshold() {
  const char* text = ::getenv("LOCKSTEP_LOG");
  const std::string_view wanted = text == nullptr ? "warning" : text;
  for (std::size_t i = 0; i < level_names.size(); ++i)
    if (level_names[i] == wanted) return static_cast<int>(i);
  return wanted == "off" ? -1 : static_cast<int>(LogLevel::warning);
}

void write_to_stderr(LogLevel level, std::string_view message) {
  const std::string line =
      fmt::format("lockstep {}: {}\n", level_names[static_cast<std::size_t>(level)], message);
  // One write keeps lines of several processes whole. A failure cannot be reported.
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
  static const int least = threshold();
  if (static_cast<int>(level) > least) return;
  std::unique_lock lock(sink_mutex);
  const auto current = sink;
  lock.unlock();
  (*current)(level, message);
}

}  // namespace lockstep
