// Writes the ranks' output to the launcher's stdout and stderr in complete lines. On a terminal,
// one status line (a rank's progress bar) stays below. Files get the output byte for byte.
//
// Thread safety: none.
// Blocking: only while log files are made or written. A slow reader blocks the ranks, as on a pipe.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/rank_files.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch {

// Splits output into lines and, for a terminal, status lines, which the rank will overwrite.
class LineSplitter {
 public:
  struct Segment {
    std::string_view text;  // Without its terminator; valid during the call.
    bool status = false;    // `text` replaces the status line; empty text removes it.
  };
  using Receiver = std::function<void(const Segment&)>;

  static constexpr std::size_t longest_line = 64 * 1024;  // Bytes; longer lines are split.

  // With `statuses` a carriage return ends a status line; otherwise it is ordinary text.
  explicit LineSplitter(bool statuses) : statuses_(statuses) {}

  void add(std::string_view bytes, const Receiver& receive);

  // Text without a newline becomes the last line.
  void finish(const Receiver& receive);

 private:
  void end_line(const Receiver& receive);
  void end_status(const Receiver& receive);

  bool statuses_;
  std::string rest_;
  std::string status_;
  bool after_return_ = false;
  bool overwriting_ = false;
  bool returns_first_ = false;  // As in "\r 50%", not "50%\r".
};

class Output final : public Pollable {
 public:
  // `out` and `err` are borrowed; if both are one file, lines keep their order. Errors: misuse if
  // the log folder cannot be made or written, or options send a stream to a file but name no
  // folder.
  Output(int out, int err, const LogOptions& options = {});

  // Creates the folder of an attempt's files. Call it before its first add(). Errors:
  // system.
  void begin_attempt(const std::string& job_id, int attempt);

  // A rank's stdout and stderr: pipes, even for a file only, because a rank would not detect a full
  // disk. Streams without a destination are discarded. Errors: system.
  struct Ends {
    FileDescriptor out;
    FileDescriptor err;
  };
  // `incarnation`: earlier starts of the rank in this attempt, whose files are kept.
  Ends add(int rank, int local_rank, int incarnation = 0);

  // Path of the file for the rank's exception; empty without a log folder or attempt.
  std::string error_file(int local_rank, int incarnation = 0) const;

  void say(std::string_view text, Level level = Level::info);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override { return no_deadline; }
  void serve(const std::vector<pollfd>& entries) override;

  // Reads the rest, after the ranks' end.
  void finish();

  bool pending() const;

  // For a reader that has stopped reading.
  void drop();

  // Whether stdout or stderr failed to take text, as on a full disk. Text after a reader closed, or
  // removed by drop(), does not count.
  bool lost() const { return lost_; }

  // Columns left for a rank's line; empty if stderr is no terminal or has JSON.
  std::optional<int> columns(int rank) const;

 private:
  struct Feed {
    FileDescriptor pipe;
    LineSource source;
    LineSplitter splitter;
    LogFile file;  // Empty if it is only shown.
    bool shown;
  };

  Sink& sink_of(const Feed& feed) { return out_ && !feed.source.is_error ? *out_ : err_; }
  const Sink& sink_of(const Feed& feed) const {
    return out_ && !feed.source.is_error ? *out_ : err_;
  }
  bool statuses() const { return on_terminal_ && !format_.json(); }
  void serve(Sink& sink, const char* name, const std::vector<pollfd>& entries);
  FileDescriptor add(const LineSource& source, int incarnation);
  FileDescriptor add_feed(const LineSource& source, LogFile file, bool shown);
  bool read(Feed& feed);  // False at the end, or without data.
  void end(Feed& feed);
  void keep(Feed& feed, std::string_view bytes);
  void receive(const Feed& feed, const LineSplitter::Segment& segment);
  void print(Sink& sink, std::string_view line);
  void show_status(const LineSource& source, std::string_view text);

  const LogOptions options_;
  const LineFormat format_;
  RankFiles files_;
  int err_fd_;
  bool on_terminal_;
  std::optional<Sink> out_;  // Empty if stdout is the same file as stderr.
  Sink err_;
  bool lost_ = false;
  std::vector<Feed> feeds_;
  std::vector<char> buffer_;  // The stack may be small.
  int status_rank_ = -1;
  std::string status_;
};

}  // namespace lockstep::launch
