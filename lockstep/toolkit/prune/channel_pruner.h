// Structured pruning: removes the least important channels of a model (docs/guide/pruning.md). The
// result is a smaller dense model.
//
//   lockstep::ChannelPruner pruner(*model, batch.data, world, {.sparsity = 0.5});
//   std::cout << to_string(pruner.plan());  // Groups, parameters and MACs, before and after.
//   pruner.apply(adam);                     // Before DistributedDataParallel is created.
//
// A forward() on the example, in evaluation mode, finds which channels belong together. Groups that
// reach the output, or an unknown operation, stay whole; the plan reports why. The pruned model
// equals the whole one with zeros for removed weights.
//
// Add the pruner to the TrainingState, and call apply_saved() before resume(): a pruned model's
// checkpoint has other shapes.
// Lifetime: the model outlives it. Thread safety: none.
// Errors: misuse for a pattern that matches no layer or a sparsity outside [0, 1). Misuse for a
// model whose weights ranks share, that is on the meta device, or that a DistributedDataParallel
// still uses. Unsupported for layers that are cut over ranks; mismatch for ranks with different
// options or models; ProcessGroup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/forward_outputs.h"
#include "lockstep/tensor/state.h"
#include "lockstep/toolkit/prune/pruning_plan.h"

namespace lockstep::prune {

struct PlannedCuts;

}  // namespace lockstep::prune

namespace lockstep {

// Importance of a channel: the mean over the layers that compute it of
enum class Importance : std::uint8_t {
  l1,          // the L1 norm of the filter (Li et al., 2017),
  l2,          // its L2 norm,
  batch_norm,  // the absolute scale of the BatchNorm behind it (Liu et al., 2017); groups without
               // one stay whole,
  taylor,      // |sum(weight * gradient)| of the filter (Molchanov et al., 2017). Needs gradients.
};

struct ChannelPrunerOptions {
  double sparsity = 0.5;  // Share of each group's channels to remove, rounded down.

  Importance importance = Importance::l1;

  // Whether all channels share the sparsity, so that layers lose different shares. Importances are
  // then divided by their group's mean.
  bool global = false;

  // Each group keeps a multiple of this number of channels, or all of them. 8 or 16 suit vector
  // instructions.
  std::int64_t round_to = 1;
};

class LOCKSTEP_API ChannelPruner final : public Stateful {
 public:
  // `example` is an input of model.forward(), or a function that calls it: ChannelPruner(*model,
  // [&] { return model->forward(images, sizes); }). plan() and apply() are collective:
  // importances are means over ranks.
  template <std::derived_from<torch::nn::Module> Model, class Example>
  ChannelPruner(Model& model, Example example, const ProcessGroup& group,
                const ChannelPrunerOptions& options = {})
      : ChannelPruner(model, forward_of(model, std::move(example)), group, options, Private{}) {}
  template <std::derived_from<torch::nn::Module> Model, class Example>
  [[deprecated("pass a group")]] ChannelPruner(Model& model, Example example,
                                               const ChannelPrunerOptions& options = {})
      : ChannelPruner(model, std::move(example), ProcessGroup::self(), options) {}

  // Keeps whole the groups of channels that these layers compute. `layers` is a pattern, such as
  // "layer2" for all of a module, or "features.*.conv".
  void exclude(const std::string& layers);

  // Sets these layers' sparsity; for each layer, the last call applies. A group has the smallest
  // that is set for a layer that computes its channels.
  void set_sparsity(const std::string& layers, double sparsity);

  PruningPlan plan() const;

  // Executes plan(), also on the state of the optimizers, and returns it. Parameters remain the
  // same tensors; options such as out_channels are adapted. Gradients become undefined. Pass each
  // optimizer that has made a step: apply(adam, sgd). Afterwards create AveragedModel,
  // DistributedDataParallel and other objects that depend on sizes.
  // Errors, with nothing changed: also misuse if there is no channel to remove, and for an
  // optimizer without a parameter of the model. Misuse, with the layers, if the pruned forward()
  // fails, for example by a size as in view({-1, 4096}). Unsupported for an optimizer whose state
  // cannot be read (optimizer_stateful.h) or is spread over ranks.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  PruningPlan apply(Optimizers&... optimizers) {
    return apply_to({&optimizers...});
  }

  // Prunes like the newest undamaged checkpoint in `directory`, or the checkpoint `directory`, and
  // reads all its bytes. `part` is the pruner's name in the TrainingState. Returns whether there is
  // a checkpoint. Not collective. Create optimizers afterwards. resume() throws misuse if a newer,
  // damaged checkpoint has other shapes.
  // Errors: CheckpointReader's; misuse if the checkpoint is of another model, or this model is
  // pruned otherwise.
  bool apply_saved(const std::filesystem::path& directory, const std::string& part = "pruning");

  // The remaining channels. Loading prunes a whole model, or checks a pruned one's channels.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  using Forward = std::function<std::vector<at::Tensor>()>;
  struct Private {};

  ChannelPruner(torch::nn::Module& model, Forward forward, const ProcessGroup& group,
                const ChannelPrunerOptions& options, Private);

  template <class Model, class Example>
  static Forward forward_of(Model& model, Example example) {
    return [&model, example = std::move(example)] {
      std::vector<at::Tensor> tensors;
      auto visit = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
      if constexpr (std::invocable<const Example&>)
        visit_tensors(example(), visit);
      else if constexpr (std::convertible_to<const Example&, at::Tensor>)
        visit_tensors(model.forward(input_like(example)), visit);
      else
        visit_tensors(model.forward(example), visit);
      return tensors;
    };
  }

  // Autograd records this copy as the model's input.
  static at::Tensor input_like(const at::Tensor& example);

  PruningPlan apply_to(const std::vector<torch::optim::Optimizer*>& optimizers);
  prune::PlannedCuts planned() const;
  std::optional<double> sparsity_of(const std::vector<std::string>& layers) const;
  void remember(const std::vector<ChannelCut>& cuts);

  torch::nn::Module& model_;
  const Forward forward_;
  const ProcessGroup group_;
  const ChannelPrunerOptions options_;
  std::vector<std::pair<std::string, double>> sparsities_;  // By pattern of layers.

  // The remaining indices of the original model, by tensor and dimension.
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::int64_t>> left_;
};

}  // namespace lockstep
