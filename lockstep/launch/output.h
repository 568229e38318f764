// Writes the ranks' output in order to the launcher's stdout and stderr: complete lines, each
// prefixed with its rank.
//
// On a terminal, one status line (a rank's progress bar) stays below all other output. Files get
// the output byte for byte.
//
// Thread safety: none; used by the thread of its poll() loop.
// Blocking: only while a log file is written. While a reader of the launcher's output is slow, the
// ranks that write to it block, as on any pipe.

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

// Splits a rank's output into lines and, for a terminal, status lines: text that the rank will
// overwrite, such as a progress bar.
class LineSplitter {
 public:
  struct Segment {
    std::string_view text;  // Without its terminator. Valid during the call.
    bool status = false;    // `text` replaces the stream's status line; empty text removes it.
  };
  using Receiver = std::function<void(const Segment&)>;

  // A longer line is split into several of this length.
  static constexpr std::size_t longest_line = 64 * 1024;

  // With `statuses` a carriage return ends a status line; otherwise it is ordinary text.
  explicit LineSplitter(bool statuses) : statuses_(statuses) {}

  void add(std::string_view bytes, const Receiver& receive);

  // Ends the stream: text without a newline becomes the last line.
  void finish(const Receiver& receive);

 private:
  void end_line(const Receiver& receive);
  void end_status(const Receiver& receive);

  bool statuses_;
  std::string rest_;            // Text since the last line or status ended.
  std::string status_;          // The displayed status.
  bool after_return_ = false;   // The last character was a carriage return.
  bool overwriting_ = false;    // This line has had a carriage return.
  bool returns_first_ = false;  // This line's statuses are "\r 50%", not "50%\r".
};

class Output final : public Pollable {
 public:
  // `out` and `err` are borrowed. If they are the same terminal, pipe or file, their lines keep one
  // order. Errors: misuse when the log folder cannot be created or written, or is not given
  // although a stream is to go to a file.
  Output(int out, int err, const LogOptions& options = {});

  // Creates the folder of this attempt's files, if logs have a folder. Call it before the first
  // add() of each attempt. Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // A rank's stdout and stderr. Each is a pipe that this process reads, even if its stream goes to
  // a file only: a rank that wrote the file itself would not detect a full disk. A stream without
  // destination is discarded. Errors: system.
  struct Ends {
    FileDescriptor out;
    FileDescriptor err;
  };
  Ends add(int rank, int local_rank);

  // Path of the file for the rank's exception; empty without a log folder.
  std::string error_file(int local_rank) const;

  // Writes a line of the launcher itself to stderr.
  void say(std::string_view text, Level level = Level::info);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override { return no_deadline; }
  void serve(const std::vector<pollfd>& entries) override;

  // Reads the rest of the pipes. Call it when the ranks have ended.
  void finish();

  // True while some text is unwritten.
  bool pending() const;

  // Drops pending text, for a reader that has stopped reading.
  void drop();

  // True if stdout or stderr failed to take text, as on a full disk. Text after a reader closed, or
  // removed by drop(), does not count.
  bool lost() const { return lost_; }

  // Columns left for a rank's line if stderr is a terminal and lines are shown as text.
  std::optional<int> columns(int rank) const;

 private:
  struct Feed {
    FileDescriptor pipe;
    LineSource source;
    LineSplitter splitter;
    LogFile file;  // Empty if it is only shown.
    bool shown;    // Otherwise it goes to the file only.
  };

  Sink& sink_of(const Feed& feed) { return out_ && !feed.source.is_error ? *out_ : err_; }
  const Sink& sink_of(const Feed& feed) const {
    return out_ && !feed.source.is_error ? *out_ : err_;
  }
  bool statuses() const { return on_terminal_ && !format_.json(); }
  void serve(Sink& sink, const char* name, const std::vector<pollfd>& entries);
  FileDescriptor add(const LineSource& source);
  FileDescriptor add_feed(const LineSource& source, LogFile file, bool shown);
  bool read(Feed& feed);  // False when the rank has closed it, or there is nothing to read.
  void end(Feed& feed);   // Handles its last line, which may have no newline.
  void keep(Feed& feed, std::string_view bytes);
  void receive(const Feed& feed, const LineSplitter::Segment& segment);
  void print(Sink& sink, std::string_view line);
  void show_status(const LineSource& source, std::string_view text);

  const LogOptions options_;
  const LineFormat format_;
  RankFiles files_;
  int err_fd_;
  bool on_terminal_;
  std::optional<Sink> out_;  // Empty when stdout and stderr are the same.
  Sink err_;
  bool lost_ = false;
  std::vector<Feed> feeds_;
  std::vector<char> buffer_;  // For read(): the stack may be small.
  int status_rank_ = -1;
  std::string status_;  // As the terminal shows it.
};

}  // namespace lockstep::launch
