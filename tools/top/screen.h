// The picture that `lockstep top` shows: the ranks of each job, one line each.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/status.h"

namespace lockstep::tools {

struct Screen {
  int columns = 80;
  int rows = 0;         // 0 for no limit.
  bool colors = false;  // Else phases are told by their letters only.
};

// Returns lines of at most `columns` characters, each with its newline, and at most `rows` of them.
// A rank's bar shows how it has spent the last ten seconds, a letter or more for each phase:
//
//   RANK STATE     STEP  STEPS/S  TIME                             WAITS FOR     MEMORY
//      0 waiting    812     10.2  dfffffffffbbbbbbbbbbbbrrwwwwwwwwo  3 (24 %)     1.2 GiB
std::string draw(const std::vector<JobStatus>& jobs, const Screen& screen);

}  // namespace lockstep::tools
