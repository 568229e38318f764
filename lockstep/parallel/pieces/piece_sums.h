// Sums the gradients of pieces in the fixed order of a PieceTree, and computes their mean.
//
// A slot holds the gradients of all parameters side by side, for each element type. The slots of
// this rank's nodes lie in registered memory. After the last piece, each rank gets its slice of all
// ranks' nodes, adds them in the tree's order, multiplies the sum and shares the slice.
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
  // Collective. `parameters` have the same layout on all ranks and types that can be reduced.
  PieceSums(const NamedTensors& parameters, const PieceTree& tree, const ProcessGroup& group);

  // Applies `step` to the gradient of parameter `index`; an undefined one is zero. Returns whether
  // the gradient is finite.
  bool take(const PieceTree::Step& step, std::size_t index, const at::Tensor& gradient) const;

  // Completes `step` after all gradients of its piece were taken.
  void merge(const PieceTree::Step& step) const;

  // Collective, after the last step: makes the sum over all pieces, times `factor`.
  void finish(double factor) const;

  // All slots, and the receive buffers.
  std::vector<at::Tensor> memory() const;

  // Bytes of memory(), equal on all ranks.
  static std::size_t bytes_for(const NamedTensors& parameters, const PieceTree& tree, int ranks);

  // The result for parameter `index`, valid until the next first step.
  const at::Tensor& result(std::size_t index) const { return places_[0][index]; }

 private:
  // All gradients of one type.
  struct Region {
    std::string label;
    std::vector<at::Tensor> slots;  // Flat tensors.
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
  std::vector<std::vector<at::Tensor>> places_;  // Indexed by slot and parameter.
};

}  // namespace lockstep
