// Marks code that runs on one rank only. Its writes to a module's tensors are sent to the other
// ranks; other changes are not. Classes with more state than tensors therefore refuse to run there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace lockstep {

// While it exists, this thread runs such code. Thread safety: destroy it on the thread that created
// it.
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
