// Backward of a graph in two parts: first the gradients of its inputs, for which another rank
// waits, later those of its weights. As PyTorch's torch/distributed/pipelining/_backward.py.
//
// A node that leads to an input and to a weight, such as that of a matrix product, runs in both
// parts. LibTorch's engine computes only the results that lead to the requested outputs, so its own
// operators compute no product twice. The first part keeps the gradient that arrives at each such
// node. Weights that several such nodes use, such as tied ones, are computed together, and the
// nodes between them run again.
//
// A node that cannot omit a part of its work does all of it twice. Examples are custom Functions
// and activation_checkpoint(), which computes its block again in each part, with its communication.
// Hooks of tensors at such nodes run in both parts.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace lockstep::parallel {

class SplitBackward {
 public:
  // `roots` are outputs that require a gradient, `gradients` theirs.
  SplitBackward(const std::vector<at::Tensor>& roots, std::vector<at::Tensor> gradients);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  // Gradients of these leaves; undefined where the graph does not reach one. Call it at most once,
  // before weights(), with at least one leaf.
  std::vector<at::Tensor> inputs(const std::vector<at::Tensor>& leaves);

  // Adds all other leaves' gradients to their `.grad`, and frees the graph.
  void weights();

 private:
  struct Group;
  struct Kept;

  torch::autograd::edge_list roots_;
  std::vector<at::Tensor> gradients_;
  std::vector<Group> groups_;
  bool is_split_ = false;
};

}  // namespace lockstep::parallel
