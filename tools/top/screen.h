// The screen of `lockstep top`: the ranks of each job, one per line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/status.h"

namespace lockstep::tools {

struct Screen {
  int columns = 80;
  int rows = 0;         // 0 for no limit.
  bool colors = false;  // Otherwise only letters distinguish phases.
};

// At most `rows` lines of at most `columns` characters. A rank's bar shows its last ten seconds.
//
//   RANK STATE     STEP  STEPS/S  TIME                             WAITS FOR     MEMORY
//      0 waiting    812     10.2  dfffffffffbbbbbbbbbbbbrrwwwwwwwwo  3 (24 %)     1.2 GiB
std::string draw(const std::vector<JobStatus>& jobs, const Screen& screen);

}  // namespace lockstep::tools
