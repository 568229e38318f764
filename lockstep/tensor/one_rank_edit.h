// Marks code that runs on one rank only. The other ranks get only its writes to a module's tensors.
// Functions that change other state therefore refuse to run there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/base/api.h"

namespace lockstep {

// Exists while this thread runs such code. Destroy it on the thread that created it.
class LOCKSTEP_API OneRankEdit {
 public:
  OneRankEdit() = default;
  ~OneRankEdit() { is_running_here = was_running_; }
  OneRankEdit(const OneRankEdit&) = delete;
  OneRankEdit& operator=(const OneRankEdit&) = delete;

  static bool is_running() { return is_running_here; }

 private:
  inline static thread_local bool is_running_here = false;

  const bool was_running_ = std::exchange(is_running_here, true);
};

}  // namespace lockstep
