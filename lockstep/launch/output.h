// What the ranks write, put in order: whole lines, each with its rank before it, on the
// launcher's own stdout and stderr.
//
// On a terminal, one status line (a rank's progress bar) is kept below everything else. What is to
// be in files goes there as it came, byte for byte.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: never. While a reader is slow the ranks that write to it wait, as on any pipe.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/line_format.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/log_options.h"
#include "lockstep/launch/rank_files.h"
#include "lockstep/launch/sink.h"

namespace lockstep {

class Output {
 public:
  // `out` and `err` are borrowed. They may be the same terminal, pipe or file; then so is their
  // order. Errors: misuse when the folder of the logs cannot be made or written to, or is missing
  // where a stream is to go to a file.
  Output(int out, int err, const LogOptions& options = {});

  // Makes the folder of this attempt's files, where there is one for logs; to be called before the
  // first add() of each attempt. Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // What a rank is to have as stdout and stderr: pipes that we read; or the file itself, when that
  // is all that it goes to. What is not shown goes to a file where there are any, else nowhere.
  // Errors: system.
  struct Ends {
    FileDescriptor out;
    FileDescriptor err;
  };
  Ends add(int rank, int local_rank);

  // Where the rank writes its exception, a path; empty without a folder of logs.
  std::string error_file(int local_rank) const;

  // A line of the launcher itself, on stderr.
  void say(std::string_view text, Level level = Level::info);

  // Adds what poll() has to watch, then acts on what it saw.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

  // Takes what is left in the pipes; to be called when the ranks are gone.
  void finish();

  // Something has not been written yet.
  bool pending() const;

  // Forgets what is pending, for a reader who has stopped reading.
  void drop();

  // Stdout or stderr did not take what was for them, as on a full disk. A reader who has gone is no
  // loss, nor is what drop() forgot.
  bool lost() const { return lost_; }

  // How many columns are left for a rank's line on the terminal that stderr is, if it is one and
  // lines are shown as text.
  std::optional<int> columns(int rank) const;

 private:
  struct Feed {
    FileDescriptor pipe;
    LineSource source;
    LineSplitter splitter;
    LogFile file;  // None when it is shown only.
  };

  Sink& sink_of(const Feed& feed) { return out_ && !feed.source.is_error ? *out_ : err_; }
  const Sink& sink_of(const Feed& feed) const {
    return out_ && !feed.source.is_error ? *out_ : err_;
  }
  bool statuses() const { return on_terminal_ && !format_.json(); }
  void serve(Sink& sink, const char* name, const std::vector<pollfd>& entries);
  FileDescriptor add(const LineSource& source);
  FileDescriptor add_feed(const LineSource& source, LogFile file);
  bool read(Feed& feed);  // False when the rank has closed it, or has nothing to read.
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
  std::string status_;  // As it is on the terminal now.
};

}  // namespace lockstep
