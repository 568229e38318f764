// Options for the ranks' output.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Selection of a rank's two streams; the numbers are torchrun's.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> of_local_rank = {};  // Override `all`.

  Streams of(int local_rank) const;
};

// Parses "3", or "0:1,1:2" for local ranks 0 and 1. Errors: misuse.
LOCKSTEP_API StreamChoice parse_streams(std::string_view text);

enum class LogFormat {
  text,  // Each line follows its "[rank] ".
  json,  // Each line is an object: time, rank, stream, line; the launcher's own lines have a level.
};

struct LogOptions {
  // Folder for a job's log files, mode 0600: DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/ with
  // stdout.log, stderr.log and, after a failure with an exception, error.json. No files are written
  // when empty.
  std::string directory = {};
  StreamChoice redirects = {};     // Streams that go to files only.
  StreamChoice tee = {};           // Streams that go to files as well as to the console.
  std::set<int> local_ranks = {};  // Local ranks whose output is shown; all when empty.
  LogFormat format = LogFormat::text;
};

}  // namespace lockstep
