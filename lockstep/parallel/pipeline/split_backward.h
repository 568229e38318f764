// Backward of a graph in two parts: first the gradients of its inputs, for which another rank
// waits, later those of its weights. LibTorch's own operators compute no product twice.
//
// A node that leads to an input and to a weight, such as that of a matrix product, runs in both
// parts: LibTorch's engine computes only what leads to the outputs that are asked for. The first
// part keeps the gradient that comes to each such node, and frees what only it needs. Weights that
// several such nodes use, as tied ones, are done together, and the nodes between them run again. So
// does PyTorch (torch/distributed/pipelining/_backward.py).
//
// A node that cannot leave out a part of its work does all of it twice: those of custom Functions,
// and of activation_checkpoint(), which computes its block again in each part, with what it
// communicates.
//
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

  // Gradients of these leaves; undefined where the graph does not reach one. Call it once, before
  // weights(), and not at all if there are no leaves.
  std::vector<at::Tensor> inputs(const std::vector<at::Tensor>& leaves);

  // Adds the gradients of all other leaves to their `.grad`, and frees the graph.
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
