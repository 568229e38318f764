// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/log_options.h"

namespace lockstep {

Streams StreamChoice::of(int local_rank) const {
  const auto own = of_local_rank.find(local_rank);
  return own != of_local_rank.end() ? own->second : all;
}

}  // namespace lockstep
