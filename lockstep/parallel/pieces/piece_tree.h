// The fixed binary tree for sums over pieces, independent of the number of ranks.
//
// Its leaves are the pieces 0 to k - 1. A node consists of all pieces that are congruent modulo
// some s. With the smallest prime factor q of k / s, its children are the q classes modulo s q in
// it, added from the left. For k = 8: ((0+4)+(2+6))+((1+5)+(3+7)). Rank r of R has the pieces p
// with p mod R = r. If R and k are powers of two, these form one node. In general they form a few:
// the classes modulo `exchanged()`, the first multiple of R among these s.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep {

class PieceTree {
 public:
  // Adds slot `second` to slot `first`. Slots hold sums.
  using Merge = std::pair<std::size_t, std::size_t>;

  // Puts one piece into a slot.
  struct Step {
    int piece;
    std::size_t slot;
    bool adds;                  // Adds to the slot's sum; otherwise replaces it.
    std::vector<Merge> merges;  // Follow the step.
  };

  // `ranks` divides `pieces`; both are positive.
  PieceTree(int pieces, int ranks);

  // The pieces of rank `rank`, in the order of computation. Afterwards, slots 0 to own() - 1 hold
  // its nodes: slot j the class of rank + j * ranks.
  std::vector<Step> steps(int rank) const;

  int exchanged() const { return exchanged_; }     // Number of nodes of all ranks.
  int own() const { return exchanged_ / ranks_; }  // Number of nodes of one rank.
  std::size_t slots() const;                       // Number of slots that steps() uses.
  std::vector<Merge> merges() const;  // For all nodes, by class; the total is then in 0.

 private:
  int next(int modulus) const;  // The modulus of a node's children.
  void add_steps(int first, int modulus, std::size_t slot, std::size_t spare,
                 std::vector<Step>& steps) const;
  void add_merges(int first, int modulus, std::vector<Merge>& merges) const;

  const int pieces_;
  const int ranks_;
  int exchanged_ = 1;
};

}  // namespace lockstep
