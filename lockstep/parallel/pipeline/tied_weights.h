// Weights that several layers of a pipeline share: LayerList::tie(). On one rank, they become one
// tensor. On several ranks they are copies, whose gradients SparseSum adds once per step, or
// all_reduce() if some of these ranks share memory.
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
  // By parameter name.
  using Stages = std::map<std::string, int>;

  // Collective over `group`. `module` has this rank's layers.
  TiedWeights(const std::vector<LayerList::Tie>& ties, const Stages& stages,
              const PipelineOrder& order, torch::nn::Module& module, const ProcessGroup& group);

  // Ties weights again after the kept ones got other memory.
  void follow_memory();

  // Before a step, after each of its actions on this rank, and at its end: collective over each
  // weight's ranks.
  void begin_step();
  void after(const PipelineAction& action);
  void add_gradients();

  // Aborts sums in which other ranks would wait for this one.
  void abort(const std::string& reason);

  const std::string& saved_name(const std::string& name) const;

  // Whether this rank's norm includes it.
  bool counts(const std::string& name) const { return !copies_.contains(name); }

 private:
  struct Across {
    std::string name;
    at::Tensor parameter;
    ProcessGroup group;
    PipelineAction last;             // Completes the gradient.
    std::unique_ptr<SparseSum> sum;  // Null for all_reduce().
    at::Tensor earlier = {};         // `.grad` before the step, the same on all ranks.
    at::Tensor gradient = {};        // This step's.
  };

  static void complete(Across& each);

  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // With the original.
  std::vector<Across> across_;
  std::map<std::string, std::string> copies_;  // Names, and saved names.
};

// Collective over `group`, before weights are tied. Errors: misuse, on all ranks, for tied weights
// that plans cut differently.
void require_equal_parts(const LayerList& layers, const torch::nn::Module& module,
                         const ProcessGroup& group);

}  // namespace lockstep::parallel
