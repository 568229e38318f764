// What the ranks write, put in order: whole lines, each with its rank before it, on the
// launcher's own stdout and stderr.
//
// On a terminal, one status line (a rank's progress bar) is kept below everything else.
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

#include "lockstep/comm/host/file_descriptor.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/log_options.h"
#include "lockstep/launch/sink.h"

namespace lockstep {

class Output {
 public:
  // `out` and `err` are borrowed. They may be the same terminal, pipe or file; then so is their
  // order. Errors: system, misuse when the folder of the logs cannot be made or is not ours.
  Output(int out, int err, const LogOptions& options = {});

  // The folder of this attempt's files, when there are any; made when it is needed.
  // Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // What a rank is to have as stdout or stderr. We read what it writes there, unless that goes to a
  // file alone, which is then its stdout. Errors: system.
  struct Ends {
    FileDescriptor out;
    FileDescriptor err;
  };
  Ends add(int rank, int local_rank);

  // Where the rank writes its exception, a path; empty without a folder of logs.
  std::string error_file(int local_rank) const;

  // A line of the launcher itself, on stderr.
  void say(std::string_view text);

  // Adds what poll() has to watch, then acts on what it saw.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

  // Takes what is left in the pipes; to be called when the ranks are gone.
  void finish();

  // Something has not been written yet.
  bool pending() const;

  // Forgets what is pending, for a reader who has stopped reading.
  void drop();

  // How many columns are left for a rank's line on the terminal that stderr is, if it is one.
  std::optional<int> columns(int rank) const;

 private:
  struct Feed {
    FileDescriptor pipe;
    int rank;
    bool is_error;
    LineSplitter splitter;
  };

  Sink& sink_of(const Feed& feed) { return out_ && !feed.is_error ? *out_ : err_; }
  const Sink& sink_of(const Feed& feed) const { return out_ && !feed.is_error ? *out_ : err_; }
  void add(int rank, FileDescriptor pipe, bool is_error);
  bool read(Feed& feed);  // False when the rank has closed it, or has nothing to read.
  void receive(const Feed& feed, const LineSplitter::Segment& segment);
  void print(Sink& sink, std::string_view prefix, std::string_view text);
  void show_status(int rank, std::string_view text);

  int err_fd_;
  bool on_terminal_;
  std::optional<Sink> out_;  // Empty when stdout and stderr are the same.
  Sink err_;
  std::vector<Feed> feeds_;
  int status_rank_ = -1;
  std::string status_;  // As it is on the terminal now.
};

}  // namespace lockstep
