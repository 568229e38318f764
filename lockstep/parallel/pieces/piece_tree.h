// The fixed binary tree in which sums over pieces are added, whatever the number of ranks.
//
// Its leaves are the pieces 0 to k - 1. A node is all pieces that are congruent modulo some s; with
// the smallest prime factor q of k / s, its children are the q classes modulo s q in it, added from
// the left: for k = 8, ((0+4)+(2+6))+((1+5)+(3+7)). Rank r of R has the pieces p with p mod R = r.
// Where R and k are powers of two, these are one node. In general they are a few: the classes
// modulo `exchanged()`, the first multiple of R among these s.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep {

class PieceTree {
 public:
  // Slots hold sums. Slot `second` is added to slot `first`.
  using Merge = std::pair<std::size_t, std::size_t>;

  // One piece on its way into a slot.
  struct Step {
    int piece;
    std::size_t slot;
    bool adds;                  // To what the slot holds; otherwise it replaces that.
    std::vector<Merge> merges;  // After it.
  };

  // `ranks` divides `pieces`; both are positive.
  PieceTree(int pieces, int ranks);

  // The pieces of rank `rank`, in the order in which it computes them. Its nodes are then in slots
  // 0 to own() - 1: in slot j the class of rank + j * ranks.
  std::vector<Step> steps(int rank) const;

  int exchanged() const { return exchanged_; }     // Nodes of all ranks together.
  int own() const { return exchanged_ / ranks_; }  // Nodes of one rank.
  std::size_t slots() const;                       // That steps() uses.
  std::vector<Merge> merges() const;  // Of all nodes, by class: the whole sum is then in 0.

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
