// Code that runs on one rank for all: what it writes to a module's tensors reaches the other ranks,
// and whatever else it changes does not. A class that keeps more than tensors refuses to work
// there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace lockstep {

// While it exists, this thread runs such code. Thread safety: it ends on the thread that made it.
class OneRankEdit {
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
