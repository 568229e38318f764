// Weights that several layers of a pipeline share: LayerList::tie().
//
// Two on one rank become one tensor for autograd too: the second lies in the memory of the first,
// and its gradients go where those of the first go. Two on different ranks are copies, whose
// gradients are added up once a step: by SparseSum where no two of these ranks share memory, which
// sends each rank's gradient as soon as its last backward has made it; and otherwise by
// all_reduce(), which adds up those of a host before they leave it.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/sparse_sum.h"

namespace lockstep::parallel {

class TiedWeights {
 public:
  // The stage of each parameter of the whole model, by name.
  using Stages = std::map<std::string, int>;

  // Collective over `group`: makes the parameters of `module`, this rank's, one.
  TiedWeights(const std::vector<LayerList::Tie>& ties, const Stages& stages,
              const PipelineOrder& order, torch::nn::Module& module, const ProcessGroup& group);

  // Again, after the first ones have got other memory.
  void follow_memory();

  // Before a step, after each of its actions on this rank, and at its end: its gradients are added
  // up. The last one is collective over the ranks of each weight.
  void begin_step();
  void after(const PipelineAction& action);
  void add_gradients();

  // Ends the sums of other ranks, which would wait for this one in vain.
  void give_up(const std::string& reason);

  // The name under which a parameter of the module is saved.
  const std::string& saved_name(const std::string& name) const;

  // Whether this rank counts the parameter, for a norm.
  bool counts(const std::string& name) const { return !copies_.contains(name); }

 private:
  struct Across {
    std::string name;
    at::Tensor parameter;
    ProcessGroup group;
    PipelineAction last;             // The action that completes the gradient.
    std::unique_ptr<SparseSum> sum;  // Null if all_reduce() suits these ranks better.
    at::Tensor earlier = {};         // `.grad` before the step, the same on all ranks.
    at::Tensor gradient = {};        // Of the step, once it is complete.
  };

  static void complete(Across& each);

  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // And the parameter each is one with.
  std::vector<Across> across_;
  std::map<std::string, std::string> copies_;  // Names of copies, and those they are saved under.
};

// Collective over `group`, before the weights become one. Errors: misuse, on all ranks, if plans
// have left two tied weights in different parts.
void require_equal_parts(const LayerList& layers, const torch::nn::Module& module,
                         const ProcessGroup& group);

}  // namespace lockstep::parallel
