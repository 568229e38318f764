// Removes the channels of a model that contribute least. What is left is a smaller dense model,
// which computes faster without any support of the hardware.
//
//   lockstep::ChannelPruner pruner(*model, batch.data, world, {.sparsity = 0.5});
//   pruner.exclude("layer4");
//   std::cout << to_string(pruner.plan());  // Groups, parameters and MACs, before and after.
//   pruner.apply(adam);                     // Weights, BatchNorm's statistics, Adam's moments.
//   lockstep::DistributedDataParallel ddp(model, world);
//   ...                                     // Fine-tuning.
//
// forward() runs once on the example, in evaluation mode, and autograd's graph of it tells which
// channels belong together: across additions, concatenations, BatchNorm, flatten(), depthwise and
// grouped convolutions, squeeze-and-excitation. Channels of Conv and Linear layers are removed.
// Groups that reach the output, or an operation that the pruner does not know, stay whole; the plan
// says why. The pruned model computes what the whole one does with zeros in place of the removed
// weights.
//
// Parameters remain the same tensors; options such as out_channels are adapted. Gradients become
// undefined. Optimizers stay valid if apply() gets them: pass each one that has made a step, as in
// apply(adam, sgd), because the moments of others keep their size. AveragedModel,
// DistributedDataParallel and other objects that know sizes are made afterwards.
//
// A checkpoint of a pruned model has other shapes than the program's model. Add the pruner to the
// TrainingState, and call apply_saved() before a resume():
//   pruner.apply_saved("runs/a");  // Nothing if no checkpoint is there yet.
//
// Lifetime: the model outlives it. Thread safety: none.
// Errors: misuse for a pattern that fits no layer, a sparsity outside of [0, 1), a model whose
// weights ranks share, that is on the meta device, or that a DistributedDataParallel still has;
// unsupported for layers that are cut over ranks; mismatch for ranks with other plans; those of
// ProcessGroup.

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
#include "lockstep/prune/pruning_plan.h"
#include "lockstep/tensor/state.h"

namespace lockstep::prune {

struct PlannedCuts;

}  // namespace lockstep::prune

namespace lockstep {

// Importance of a channel: the mean over the layers that make it of
enum class Importance : std::uint8_t {
  l1,          // the L1 norm of the filter (Li et al., 2017),
  l2,          // its L2 norm,
  batch_norm,  // the absolute scale of the BatchNorm behind it (Liu et al., 2017); groups without
               // one stay whole,
  taylor,      // |sum(weight * gradient)| of the filter (Molchanov et al., 2017). Needs gradients.
};

struct ChannelPrunerOptions {
  double sparsity = 0.5;  // Share of the channels that is removed, rounded down. In [0, 1).

  Importance importance = Importance::l1;

  // Whether the share is of all channels together, so that layers lose unequal shares. Importances
  // are then divided by their mean in the group. Otherwise each group loses the share.
  bool global = false;

  // Each group keeps a multiple of so many channels, and at least so many. Vector instructions like
  // multiples of 8 or 16.
  std::int64_t round_to = 1;
};

class LOCKSTEP_API ChannelPruner final : public Stateful {
 public:
  // `example` is an input of model.forward(); for another number of inputs, a function that calls
  // it: ChannelPruner(*model, [&] { return model->forward(images, sizes); }). With a `group`,
  // plan() and apply() are collective, importances are means over its ranks, and plans are
  // compared.
  template <std::derived_from<torch::nn::Module> Model, class Example>
  ChannelPruner(Model& model, Example example, const std::optional<ProcessGroup>& group,
                const ChannelPrunerOptions& options = {})
      : ChannelPruner(model, forward_of(model, std::move(example)), group, options, Private{}) {}
  template <std::derived_from<torch::nn::Module> Model, class Example>
  ChannelPruner(Model& model, Example example, const ChannelPrunerOptions& options = {})
      : ChannelPruner(model, std::move(example), std::nullopt, options) {}

  // Keeps all channels that these layers make, and so their groups whole. `layers` is a pattern of
  // names, such as "layer2" for all of a module, or "features.*.conv".
  void exclude(const std::string& layers);

  // Another sparsity for the groups of these layers, also with `global`. The last call counts.
  void set_sparsity(const std::string& layers, double sparsity);

  PruningPlan plan() const;

  // Carries out plan(), also on the state of the optimizers, and returns it. Errors: in addition,
  // misuse, with nothing changed, if there is no channel to remove; for an optimizer that has no
  // parameter of the model; and if forward() fails
  // afterwards, because it has sizes as numbers, such as view({-1, 4096}): the message names the
  // layers and the error. unsupported for an optimizer whose state cannot be read
  // (optimizer_stateful.h) or is spread over ranks.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  PruningPlan apply(Optimizers&... optimizers) {
    return apply_to({&optimizers...});
  }

  // Prunes as the newest undamaged checkpoint in `directory`, of which it reads all bytes; or as
  // the checkpoint `directory`. resume() refuses a newer one that is damaged, if its shapes differ.
  // `part` is a pruner's. Returns whether there is one. Not collective. Optimizers are made
  // afterwards. Errors: those of CheckpointReader; misuse if it is of another model, or this one is
  // pruned already.
  bool apply_saved(const std::filesystem::path& directory, const std::string& part = "pruning");

  // The channels that are left of the model as it was made. Loading prunes a model that is not yet
  // pruned; of a pruned one it checks that the same channels are left.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  using Forward = std::function<std::vector<at::Tensor>()>;
  struct Private {};

  ChannelPruner(torch::nn::Module& model, Forward forward, const std::optional<ProcessGroup>& group,
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

  // A copy through which autograd sees the model's input.
  static at::Tensor input_like(const at::Tensor& example);

  PruningPlan apply_to(const std::vector<torch::optim::Optimizer*>& optimizers);
  prune::PlannedCuts planned() const;
  std::optional<double> sparsity_of(const std::vector<std::string>& layers) const;
  void remember(const std::vector<ChannelCut>& cuts);

  torch::nn::Module& model_;
  const Forward forward_;
  const std::optional<ProcessGroup> group_;
  const ChannelPrunerOptions options_;
  std::vector<std::pair<std::string, double>> sparsities_;  // By pattern of layers.

  // The indices that are left of those of the model as it was made, by tensor and dimension.
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::int64_t>> left_;
};

}  // namespace lockstep
