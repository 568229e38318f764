// Describes who called what when ranks called different things.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/core/signature.h"

namespace lockstep {

struct Disagreement {
  // Ranks outside the majority's call; all ranks when no call has more than half of them.
  std::vector<int> differing;

  // Such as "rank 0 called all_reduce(sum) of 8 float32, rank 3 called barrier; ranks 1-2 called
  // what rank 0 did".
  std::string text;
};

// `calls`, by rank, are not all equal. `labels` are the texts of their labels, or empty when
// unknown.
Disagreement disagreement_of(const std::vector<Signature>& calls,
                             const std::vector<std::string>& labels = {});

}  // namespace lockstep
