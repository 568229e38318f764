// The launcher's console: line format, stdout and stderr, and a queue for log lines.
//
// Thread safety: none, except for LogQueue. Blocking: only say_error() and say_info().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/run.h"

namespace lockstep {

enum class Level { info, error };

struct LineSource {
  int rank = 0;
  int local_rank = 0;
  bool is_error = false;
};

// A rank's line is "[rank] ", in the rank's colour on a terminal with colours, and text. With json
// it is an object, with U+FFFD for invalid UTF-8.
class LineFormat {
 public:
  LineFormat(LogFormat format, bool colors_out, bool colors_err)
      : json_(format == LogFormat::json), colors_out_(colors_out), colors_err_(colors_err) {}

  bool json() const { return json_; }

  // With the newline.
  std::string line(const LineSource& source, std::string_view text) const;
  std::string own_line(Level level, std::string_view text) const;

  std::string prefix(const LineSource& source) const;
  static int width_of_prefix(int rank);

 private:
  bool json_;
  bool colors_out_;
  bool colors_err_;
};

// Writes to stderr at once, for use while no Output (output.h) exists.
LOCKSTEP_API void say_error(LogFormat format, std::string_view text);

LOCKSTEP_API void say_info(LogFormat format, std::string_view text);

// True for a terminal, unless NO_COLOR (no-color.org) or TERM disables colours.
bool wants_colors(int fd);

// The launcher's stdout or stderr. A slow or stopped reader does not delay the monitoring of ranks.
class Sink {
 public:
  // `fd` must outlive the sink.
  explicit Sink(int fd);

  // Queues text. A write() has complete lines, up to 64 KiB, or PIPE_BUF if it may block. A longer
  // line is divided.
  void add(std::string_view text);

  bool pending() const { return begin_ < pending_.size(); }

  // While true, leave the ranks' output in their pipes.
  bool full() const { return pending_.size() - begin_ > capacity; }

  void watch(std::vector<pollfd>& entries) const;

  // Returns 0, or the errno of a failed write, after which all text is dropped.
  int serve(const std::vector<pollfd>& entries);

  void drop();

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 20;

  std::string_view next_write() const;
  void advance(std::size_t written);

  FileDescriptor reopened_;
  int fd_;
  std::size_t largest_write_;
  bool lost_ = false;
  std::string pending_;
  std::size_t begin_ = 0;
};

bool same_file(int a, int b);

// Queues this library's log lines for the poll() loop, which writes them without blocking.
//
// Thread safety: any thread may log; the members belong to the loop's thread.
class LogQueue final : public launch::Pollable {
 public:
  // The log's sink during its lifetime. serve() passes lines to `write`. Errors: system.
  explicit LogQueue(LogSink write);
  ~LogQueue() override;
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override { return no_deadline; }
  void serve(const std::vector<pollfd>& entries) override;

 private:
  using Line = std::pair<LogLevel, std::string>;

  std::vector<Line> take();

  const LogSink write_;
  FileDescriptor ready_;
  std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace lockstep
