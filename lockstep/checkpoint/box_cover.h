// Chooses boxes of several ranks that cover a tensor.

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
  std::vector<RankBox> boxes;  // Each element is in exactly one.

  // Why there are no such boxes, as the end of a sentence about the tensor; otherwise empty.
  std::string complaint;
};

// `held`: non-empty boxes in a tensor of `shape`, which has at least one dimension. Omits a box
// within a box of another rank, as a copy. Any other overlap, or a gap, is a complaint. Takes n log
// n comparisons for n boxes that are cut along one dimension.
BoxCover cover(const std::vector<std::int64_t>& shape, std::vector<RankBox> held);

}  // namespace lockstep::checkpoint
