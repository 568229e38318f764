// Sums over microbatches in an order that does not depend on the number of ranks.
//
// Thread safety: none. Errors: those of ProcessGroup.

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

// A tree over the microbatches 0 to k - 1. A node is a residue class modulo s: the root for s = 1,
// a leaf for s = k. A node's q children, added from the left, have modulus s * q, where q is the
// smallest prime factor of k / s. For k = 8: ((0+4)+(2+6))+((1+5)+(3+7)).
// Rank r of R has the microbatches p with p mod R = r. They are one or a few nodes with modulus
// exchanged(), the first that R divides.
class MicrobatchTree {
 public:
  // Adds slot `second` to `first`.
  using Merge = std::pair<std::size_t, std::size_t>;

  // Puts one microbatch into a slot.
  struct Step {
    int microbatch;
    std::size_t slot;
    bool adds;                  // Otherwise replaces.
    std::vector<Merge> merges;  // Done after the step.
  };

  // `ranks` divides `microbatches`.
  MicrobatchTree(int microbatches, int ranks);

  // The microbatches of `rank`, in the order of computation. Afterwards, slot j, below own(), holds
  // the class of rank + j * ranks.
  std::vector<Step> steps(int rank) const;

  int exchanged() const { return exchanged_; }     // Nodes of all ranks.
  int own() const { return exchanged_ / ranks_; }  // Nodes of one rank.
  std::size_t slots() const;                       // Used by steps().
  std::vector<Merge> merges() const;               // By class; slot 0 has the total.

 private:
  int next(int modulus) const;  // The modulus of a node's children.
  void add_steps(int first, int modulus, std::size_t slot, std::size_t spare,
                 std::vector<Step>& steps) const;
  void add_merges(int first, int modulus, std::vector<Merge>& merges) const;

  const int microbatches_;
  const int ranks_;
  int exchanged_ = 1;
};

// Sums gradients in the order of a MicrobatchTree. For each element type, a slot holds the
// gradients of all parameters side by side. In finish(), each rank gets its slice of all nodes,
// adds them in the tree's order, multiplies the sum and shares it.
class MicrobatchSums {
 public:
  // Collective. `parameters` have the same layout on all ranks.
  MicrobatchSums(const NamedTensors& parameters, const MicrobatchTree& tree,
                 const ProcessGroup& group);

  // Applies `step` to a gradient, or zero if undefined. Returns whether the gradient is finite.
  bool take(const MicrobatchTree::Step& step, std::size_t index, const at::Tensor& gradient) const;

  // After all gradients of the microbatch.
  void merge(const MicrobatchTree::Step& step) const;

  // Collective, after the last step: sums over all ranks, and multiplies by `factor`.
  void finish(double factor) const;

  // Slots and receive buffers.
  std::vector<at::Tensor> memory() const;

  // Size of memory().
  static std::size_t bytes_for(const NamedTensors& parameters, const MicrobatchTree& tree,
                               int ranks);

  // Valid until the first step of the next pass.
  const at::Tensor& result(std::size_t index) const { return places_[0][index]; }

 private:
  // All gradients of one type.
  struct Region {
    std::string label;
    std::vector<at::Tensor> slots;  // Flat.
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
  std::vector<std::vector<at::Tensor>> places_;  // By slot and parameter.
};

}  // namespace lockstep
