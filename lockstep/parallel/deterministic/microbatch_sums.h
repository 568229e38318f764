// Sums over microbatches in the order of a fixed tree, so that the bits do not depend on the number
// of ranks.
//
// Thread safety: none.
// Errors: those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// The fixed binary tree for sums over microbatches, independent of the number of ranks.
//
// Its leaves are the microbatches 0 to k - 1. A node consists of all microbatches that are
// congruent modulo some s. With the smallest prime factor q of k / s, its children are the q
// classes modulo s q in it, added from the left. For k = 8: ((0+4)+(2+6))+((1+5)+(3+7)). Rank r of
// R has the microbatches p with p mod R = r. If R and k are powers of two, these form one node. In
// general they form a few: the classes modulo `exchanged()`, the first multiple of R among these s.
class MicrobatchTree {
 public:
  // Adds slot `second` to slot `first`. Slots hold sums.
  using Merge = std::pair<std::size_t, std::size_t>;

  // Puts one microbatch into a slot.
  struct Step {
    int microbatch;
    std::size_t slot;
    bool adds;                  // Adds to the slot's sum; otherwise replaces it.
    std::vector<Merge> merges;  // Done after the step.
  };

  // `ranks` divides `microbatches`, the number of microbatches; both are positive.
  MicrobatchTree(int microbatches, int ranks);

  // The microbatches of rank `rank`, in the order of computation. Afterwards, slots 0 to own() - 1
  // hold its nodes: slot j the class of rank + j * ranks.
  std::vector<Step> steps(int rank) const;

  int exchanged() const { return exchanged_; }     // Number of nodes of all ranks.
  int own() const { return exchanged_ / ranks_; }  // Number of nodes of one rank.
  std::size_t slots() const;                       // Number of slots that steps() uses.
  std::vector<Merge> merges() const;               // For all nodes, by class; slot 0 has the total.

 private:
  int next(int modulus) const;  // The modulus of a node's children.
  void add_steps(int first, int modulus, std::size_t slot, std::size_t spare,
                 std::vector<Step>& steps) const;
  void add_merges(int first, int modulus, std::vector<Merge>& merges) const;

  const int microbatches_;
  const int ranks_;
  int exchanged_ = 1;
};

// Sums the gradients of microbatches in the order of a MicrobatchTree, and computes their mean.
//
// A slot holds the gradients of all parameters side by side, for each element type. The slots of
// this rank's nodes are in registered memory. Finally, each rank receives its slice of all ranks'
// nodes, adds them in the tree's order, multiplies the sum and shares the slice.
class MicrobatchSums {
 public:
  // Collective. `parameters` have the same layout on all ranks and types that can be reduced.
  MicrobatchSums(const NamedTensors& parameters, const MicrobatchTree& tree,
                 const ProcessGroup& group);

  // Applies `step` to the gradient of parameter `index`; an undefined one is zero. Returns whether
  // the gradient is finite.
  bool take(const MicrobatchTree::Step& step, std::size_t index, const at::Tensor& gradient) const;

  // Completes `step` after all gradients of its microbatch were taken.
  void merge(const MicrobatchTree::Step& step) const;

  // Collective, after the last step: computes the sum over all microbatches, times `factor`.
  void finish(double factor) const;

  // All slots, and the receive buffers.
  std::vector<at::Tensor> memory() const;

  // Bytes of memory(), equal on all ranks.
  static std::size_t bytes_for(const NamedTensors& parameters, const MicrobatchTree& tree,
                               int ranks);

  // The result for parameter `index`, valid until the next first step.
  const at::Tensor& result(std::size_t index) const { return places_[0][index]; }

 private:
  // All gradients of one type.
  struct Region {
    std::string label;
    std::vector<at::Tensor> slots;  // Flat tensors.
    at::Tensor received;  // [exchanged, elements of a slice]: this rank's slice of all nodes.
  };

  void fill_region(at::ScalarType dtype, const NamedTensors& parameters);
  void place(at::ScalarType dtype, const NamedTensors& parameters, std::size_t slot,
             const at::Tensor& flat);
  void finish(const Region& region, double factor) const;
  void exchange(const Region& region) const;
  at::Tensor node(const Region& region, std::size_t index) const;

  const MicrobatchTree tree_;
  const ProcessGroup group_;
  const std::vector<MicrobatchTree::Merge> merges_;
  std::vector<Region> regions_;
  std::vector<std::vector<at::Tensor>> places_;  // Indexed by slot and parameter.
};

}  // namespace lockstep
