// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pieces/piece_tree.h"

#include <algorithm>

namespace lockstep {

PieceTree::PieceTree(int pieces, int ranks) : pieces_(pieces), ranks_(ranks) {
  while (exchanged_ % ranks != 0) exchanged_ = next(exchanged_);
}

int PieceTree::next(int modulus) const {
  int factor = 2;
  while ((pieces_ / modulus) % factor != 0) ++factor;
  return modulus * factor;
}

std::size_t PieceTree::slots() const {
  std::size_t most = 0;
  for (const Step& step : steps(0)) {
    most = std::max(most, step.slot);
  }
  return most + 1;
}

std::vector<PieceTree::Step> PieceTree::steps(int rank) const {
  std::vector<Step> steps;
  const auto own_nodes = static_cast<std::size_t>(own());
  for (std::size_t node = 0; node < own_nodes; ++node)
    add_steps(rank + static_cast<int>(node) * ranks_, exchanged_, node, own_nodes, steps);
  return steps;
}

// A child that is a piece is added directly. Any other child is summed in a slot of its own first,
// `spare`.
void PieceTree::add_steps(int first, int modulus, std::size_t slot, std::size_t spare,
                          std::vector<Step>& steps) const {
  if (modulus == pieces_) return steps.push_back({first, slot, /*adds=*/false, {}});
  const int finer = next(modulus);
  add_steps(first, finer, slot, spare, steps);
  for (int child = first + modulus; child < first + finer; child += modulus) {
    if (finer == pieces_) {
      steps.push_back({child, slot, /*adds=*/true, {}});
    } else {
      add_steps(child, finer, spare, spare + 1, steps);
      steps.back().merges.emplace_back(slot, spare);
    }
  }
}

std::vector<PieceTree::Merge> PieceTree::merges() const {
  std::vector<Merge> merges;
  add_merges(0, 1, merges);
  return merges;
}

void PieceTree::add_merges(int first, int modulus, std::vector<Merge>& merges) const {
  if (modulus == exchanged_) return;
  const int finer = next(modulus);
  add_merges(first, finer, merges);
  for (int child = first + modulus; child < first + finer; child += modulus) {
    add_merges(child, finer, merges);
    merges.emplace_back(first, child);
  }
}

}  // namespace lockstep
