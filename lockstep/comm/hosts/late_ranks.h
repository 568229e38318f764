// Warns of ranks for which init_process_group() waits longer than usual.
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

  // Sets where it expects the others, such as "the store at node1:29400".
  void expect_at(std::string place) { place_ = std::move(place); }

  // Call it in the loop of a wait. At due(), the lowest rank that has come warns of those of `size`
  // that have not.
  void look_for_all(int size, const std::function<bool(int rank)>& has_come);

  // The same for rank 0, where ranks find each other only through it. One rank of `job` on this
  // host warns; others do too if they have too many open files to determine that.
  void look_for_rank_0(const std::string& job);
  Deadline due() const { return due_; }

 private:
  void look(const std::function<std::vector<int>()>& find_missing);

  const int rank_;
  const Clock::time_point began_ = Clock::now();
  std::chrono::milliseconds pause_;
  Deadline due_;
  std::string place_;
  FileDescriptor speaker_;  // A name that one rank of this host holds.
};

}  // namespace lockstep::comm
