// Who a process says it is when it joins a job's network: what both ends of a connection must
// agree on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

struct JobMember {
  std::string job_id;  // 1 to 123 bytes; no other job may have it.
  int rank = 0;
  int world_size = 1;
  int attempt = 0;  // How often the job was started anew: ranks of an earlier start are refused.
};

}  // namespace lockstep
