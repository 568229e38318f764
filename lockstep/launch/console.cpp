// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/message_parts.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view plain = "\033[0m";
constexpr std::string_view bold = "\033[1m";

// Readable on black and white. Without red, which marks errors.
constexpr std::array rank_colors{36, 32, 33, 35, 94, 96, 92, 95};

std::string name_of(int rank) { return fmt::format("[{}]", rank); }

// UTC, to compare hosts.
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

// Reopens a pipe or terminal in non-blocking mode: O_NONBLOCK on the descriptor itself would affect
// every process that inherited it. Empty for other files, or other users'.
FileDescriptor reopen(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || ::isatty(fd) == 1)) return {};
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return FileDescriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool may_block(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) != 0 || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) ||
         ::isatty(fd) == 1;
}

// With more lines, the loop has stopped and will not read them.
constexpr std::size_t most_lines = 1000;

}  // namespace

std::string LineFormat::prefix(const LineSource& source) const {
  if (!(source.is_error ? colors_err_ : colors_out_)) return name_of(source.rank) + " ";
  const int color = rank_colors[static_cast<std::size_t>(source.rank) % rank_colors.size()];
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

namespace {

void say_at_once(LogFormat format, Level level, std::string_view text) {
  const bool colors = wants_colors(STDERR_FILENO);
  const std::string line = LineFormat(format, colors, colors).own_line(level, text);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void say_error(LogFormat format, std::string_view text) {
  const MessageParts parts = parts_of(text);
  say_at_once(format, Level::error, parts.what);
  if (!parts.who.empty()) say_at_once(format, Level::error, "caused by " + parts.who);
  if (!parts.to_do.empty()) say_at_once(format, Level::error, "to do: " + parts.to_do);
}

void say_info(LogFormat format, std::string_view text) { say_at_once(format, Level::info, text); }

bool wants_colors(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool refused = no_color != nullptr && *no_color != '\0';
  const bool capable = term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
  return !refused && capable && ::isatty(fd) == 1;
}

Sink::Sink(int fd) : reopened_(reopen(fd)), fd_(reopened_ ? reopened_.get() : fd) {
  // If write() may block, a ready pipe has space for PIPE_BUF bytes.
  largest_write_ = !reopened_ && may_block(fd) ? PIPE_BUF : 64 * 1024;
}

void Sink::add(std::string_view text) {
  if (!lost_) pending_ += text;
}

void Sink::drop() {
  lost_ = true;
  pending_.clear();
  begin_ = 0;
}

void Sink::watch(std::vector<pollfd>& entries) const {
  if (pending()) entries.push_back({fd_, POLLOUT, 0});
}

int Sink::serve(const std::vector<pollfd>& entries) {
  if (std::none_of(entries.begin(), entries.end(),
                   [this](const pollfd& entry) { return entry.fd == fd_ && entry.revents != 0; }))
    return 0;
  const std::string_view next = next_write();
  const ssize_t written = ::write(fd_, next.data(), next.size());
  if (written >= 0) {
    advance(static_cast<std::size_t>(written));
    return 0;
  }
  if (errno == EAGAIN || errno == EINTR) return 0;
  const int reason = errno;
  drop();
  return reason;
}

// Complete lines, or the beginning of a longer line.
std::string_view Sink::next_write() const {
  const std::string_view rest = std::string_view(pending_).substr(begin_);
  if (rest.size() <= largest_write_) return rest;
  const auto newline = rest.rfind('\n', largest_write_ - 1);
  return rest.substr(0, newline == rest.npos ? largest_write_ : newline + 1);
}

// Erases half of the buffer or more: each byte moves at most once.
void Sink::advance(std::size_t written) {
  begin_ += written;
  if (begin_ < pending_.size() / 2) return;
  pending_.erase(0, begin_);
  begin_ = 0;
}

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

LogQueue::LogQueue(LogSink write)
    : write_(std::move(write)), ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!ready_) throw_errno("making an eventfd");
  set_log_sink([this](LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < most_lines) lines_.emplace_back(level, message);
    ::eventfd_write(ready_.get(), 1);
  });
}

LogQueue::~LogQueue() { set_log_sink({}); }

void LogQueue::watch(std::vector<pollfd>& entries) const {
  entries.push_back({ready_.get(), POLLIN, 0});
}

void LogQueue::serve(const std::vector<pollfd>& /*entries*/) {
  for (const auto& [level, text] : take()) write_(level, text);
}

std::vector<LogQueue::Line> LogQueue::take() {
  eventfd_t ignored = 0;
  const std::lock_guard lock(mutex_);
  ::eventfd_read(ready_.get(), &ignored);
  return std::exchange(lines_, {});
}

}  // namespace lockstep
