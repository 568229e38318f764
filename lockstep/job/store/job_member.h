// The identity of a process that joins a job's network. Both ends of a connection must agree on it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

struct JobMember {
  std::string job_id;  // 1 to 123 bytes, unique among jobs.
  int rank = 0;
  int world_size = 1;
  int attempt = 0;  // How often the job was restarted: ranks of an earlier attempt are refused.
};

}  // namespace lockstep
