// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/termination.h"

#include "lockstep/base/error.h"

namespace lockstep {

void Termination::begin(std::chrono::milliseconds time) {
  check(!begun(), "the ranks are being ended already");
  next_ = Step::terminate;
  deadline_ = in(time);
}

void Termination::begin_grace(std::chrono::milliseconds grace) {
  check(!killed(), "the ranks have been killed already");
  next_ = Step::kill;
  deadline_ = in(grace);
  grace_ = grace;
}

void Termination::kill() {
  next_ = Step::give_up;
  deadline_ = in(time_to_die);
}

bool Termination::in_grace(Clock::time_point now) const {
  return next_ == Step::kill && deadline_ != no_deadline && now < deadline_;
}

}  // namespace lockstep
