// Backward of a graph in two parts: first gradients of inputs, for which another rank waits, later
// those of weights. As PyTorch's torch/distributed/pipelining/_backward.py.
//
// A node, such as a matrix product's, runs in both parts if one edge leads to an input and another
// only to weights. LibTorch's operators compute only requested results, so they compute each
// product once. The first part keeps the gradient that arrives at each such node. If such nodes
// share a weight, one call computes its gradient, and the nodes between them run again.
//
// Nodes that cannot omit work run completely in both parts. Examples are custom Functions and
// activation_checkpoint(), which repeats its block, with its communication. Hooks of tensors run
// twice at every node that runs in both parts.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API SplitBackward {
 public:
  // `roots` require a gradient; `gradients` are theirs.
  SplitBackward(const std::vector<at::Tensor>& roots, std::vector<at::Tensor> gradients);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  // Gradients of `leaves`, which is not empty; undefined where the graph does not reach. At most
  // once, before weights().
  std::vector<at::Tensor> inputs(const std::vector<at::Tensor>& leaves);

  // Adds other leaves' gradients to their `.grad`, and frees the graph.
  void weights();

 private:
  struct Group;
  struct Kept;

  torch::autograd::edge_list roots_;
  std::vector<at::Tensor> gradients_;
  std::vector<Group> groups_;
  bool is_split_ = false;
};

}  // namespace lockstep
