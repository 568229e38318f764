// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/ticks.h"

#include <thread>

namespace lockstep {
namespace {

struct Moment {
  Clock::time_point time;
  Ticks ticks;
};

Moment moment() { return {Clock::now(), ticks_now()}; }

// Returns nanoseconds of the clock per tick.
double scale() {
  static const double measured = [] {
    const Moment begin = moment();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Moment end = moment();
    const double nanoseconds =
        std::chrono::duration<double, std::nano>(end.time - begin.time).count();
    return nanoseconds / static_cast<double>(end.ticks - begin.ticks);
  }();
  return measured;
}

}  // namespace

Clock::time_point time_of(Ticks ticks) {
  const double rate = scale();
  const Moment now = moment();
  const auto past = static_cast<double>(static_cast<std::int64_t>(now.ticks - ticks));
  return now.time - std::chrono::nanoseconds(static_cast<std::int64_t>(past * rate));
}

}  // namespace lockstep
