// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_counts.h"

namespace lockstep {

void GradientCounts::begin_pass() {
  if (recording_) expected_.assign(expected_.size(), 0);  // An Error may have ended the last try.
  remaining_ = expected_;
}

GradientCounts::Arrival GradientCounts::note(std::size_t index) {
  if (recording_) {
    ++expected_[index];
    return Arrival::recorded;
  }
  if (remaining_[index] == 0) return Arrival::repeated;
  return --remaining_[index] > 0 ? Arrival::incomplete : Arrival::complete;
}

}  // namespace lockstep
