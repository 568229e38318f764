// Warns of ranks for which init_process_group() waits longer than usual: first when they are late,
// then after growing times.
//
// Thread safety: one thread uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep::comm {

class LateRanks {
 public:
  // `rank` is this one, which waits from now on.
  LateRanks(int rank, std::chrono::milliseconds patience);

  // From now on it expects the others at `place`, such as "the store at node1:29400".
  void expect_at(std::string place) { place_ = std::move(place); }

  // Call it in the loop of a wait. At due(), if this rank is the first of those that have come, it
  // warns of those of `size` ranks that have not. So one rank warns for all.
  void look_for_all(int size, const std::function<bool(int rank)>& has_come);

  // The same for rank 0, where ranks find each other only through it. Several ranks on this host
  // may wait for it in `job`: the first that is due warns. If this process has too many open files
  // to determine that, it also warns.
  void look_for_rank_0(const std::string& job);
  Deadline due() const { return due_; }

 private:
  void look(const std::function<std::vector<int>()>& find_missing);

  const int rank_;
  const Clock::time_point began_ = Clock::now();
  std::chrono::milliseconds pause_;
  Deadline due_;
  std::string place_;
  FileDescriptor speaker_;  // Holds a name that one rank of this host has: look_for_rank_0().
};

}  // namespace lockstep::comm
