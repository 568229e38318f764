// Gradients of the pieces on their way to their mean: partial sums, kept apart and added in the
// order of a PieceTree.
//
// Every slot is the gradients of all parameters, side by side, for each element type; those of this
// rank's nodes lie in registered memory. When all pieces are there, each rank gets its slice of all
// ranks' nodes, adds them in the tree's order, multiplies and shares the slice.
//
// Thread safety: none. Errors: those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pieces/piece_tree.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class PieceSums {
 public:
  // Collective. `parameters` are laid out alike on all ranks; types can be reduced.
  PieceSums(const NamedTensors& parameters, const PieceTree& tree, const ProcessGroup& group);

  // What `step` does with the gradient of parameter `index`; an undefined one is zero. Returns
  // whether it is finite.
  bool take(const PieceTree::Step& step, std::size_t index, const at::Tensor& gradient) const;

  // What it does when all gradients of the piece were taken.
  void merge(const PieceTree::Step& step) const;

  // Collective, after the last step: the sum over all pieces, times `factor`.
  void finish(double factor) const;

  // All slots, and what is received.
  std::vector<at::Tensor> memory() const;

  // Bytes of that, which is the same on all ranks.
  static std::size_t bytes_for(const NamedTensors& parameters, const PieceTree& tree, int ranks);

  // Where the result for parameter `index` lies, until the next first step.
  const at::Tensor& result(std::size_t index) const { return places_[0][index]; }

 private:
  // All gradients of one type.
  struct Region {
    std::string label;
    std::vector<at::Tensor> slots;  // Flat.
    at::Tensor received;            // [exchanged, elements of a slice]: my slice of all nodes.
  };

  void fill_region(at::ScalarType dtype, const NamedTensors& parameters);
  void place(at::ScalarType dtype, const NamedTensors& parameters, std::size_t slot,
             const at::Tensor& flat);
  void finish(const Region& region, double factor) const;
  void exchange(const Region& region) const;
  at::Tensor node(const Region& region, std::size_t index) const;

  const PieceTree tree_;
  const ProcessGroup group_;
  const std::vector<PieceTree::Merge> merges_;
  std::vector<Region> regions_;
  std::vector<std::vector<at::Tensor>> places_;  // By slot and parameter.
};

}  // namespace lockstep
