// ElasticGroup's groups after the first one: in their job control blocks, ranks have other numbers
// than in the job. For display only.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

class LaterGroups {
 public:
  // Each rank offers each group's block; repetitions are ignored. Errors: those of
  // JobControlBlock::attach().
  void add(FileDescriptor fd);

  // A local rank's status in its newest group; empty if its process is in none of them. `pids`: the
  // processes that the launcher has started, by local rank. Other hosts' ranks are omitted: their
  // numbers in the job are unknown.
  std::optional<RankStatus> status(int local_rank, const std::vector<pid_t>& pids,
                                   int first_rank) const;

 private:
  struct Group {
    ino_t memory;  // Identifies the block.
    JobControlBlock page;
  };

  std::deque<Group> groups_;  // Newest last. Older ones are dropped.
};

}  // namespace lockstep::launch
