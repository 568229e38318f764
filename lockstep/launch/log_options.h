// What becomes of the ranks' output.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Of a rank's two streams; the numbers are torchrun's.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> of_local_rank = {};  // These instead.

  Streams of(int local_rank) const;
};

// "3", or "0:1,1:2" for local ranks 0 and 1. Errors: misuse.
LOCKSTEP_API StreamChoice parse_streams(std::string_view text);

enum class LogFormat {
  text,  // Each line after its "[rank] ".
  json,  // Each line as an object: time, rank, stream, line; the launcher's own have a level.
};

struct LogOptions {
  // Files of a job, mode 0600, go to DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/: stdout.log,
  // stderr.log and, from a rank that failed with an exception, error.json. None when empty.
  std::string directory = {};
  StreamChoice redirects = {};     // These go to files only,
  StreamChoice tee = {};           // these to files as well.
  std::set<int> local_ranks = {};  // Whose output is shown; everybody's when empty.
  LogFormat format = LogFormat::text;
};

}  // namespace lockstep
