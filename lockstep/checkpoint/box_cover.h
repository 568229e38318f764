// Whether boxes of several ranks cover a tensor, and which of them to save.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/placed_box.h"

namespace lockstep::checkpoint {

struct RankBox {
  int rank = 0;
  PlacedBox placed;
};

struct BoxCover {
  std::vector<RankBox> boxes;  // Each element of the tensor lies in one of them.

  // Why there are no such boxes, as the end of a sentence about the tensor; else empty.
  std::string complaint;
};

// Chooses among `held`, whose boxes have elements and lie in a tensor of `shape`. A box that lies
// within one of another rank is a copy, and is left out. Any other overlap is a complaint; a gap,
// too. Takes n log n comparisons for n boxes that are cut along one dimension. Requires: at least
// one dimension.
BoxCover cover(const std::vector<std::int64_t>& shape, std::vector<RankBox> held);

}  // namespace lockstep::checkpoint
