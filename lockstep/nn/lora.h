// LoRA (Hu et al., 2021): fine-tunes a model by two small matrices beside each chosen weight, which
// itself is frozen: y = x W^T + b + (alpha / rank) x A^T B^T.
//
//   lockstep::Lora lora(*model, {"blocks.*.attention.query", "blocks.*.attention.value"},
//                       {.rank = 8, .alpha = 16});
//   lockstep::DistributedDataParallel ddp(model, world);  // Averages the adapters alone.
//   lockstep::AdamW adamw(lora.parameters(), 1e-4);
//   state.add("lora", lora);                              // Checkpoints of a few megabytes.
//   ...
//   lora.merge();                                         // forward() costs as before LoRA.
//
// Layers are lockstep::nn::Linear, wherever they are in the model; torch::nn::Linear only as
// elements of a torch::nn::Sequential, where a lockstep::nn::Linear with the same parameters takes
// its place. All other parameters are frozen, except `also_train`.
//
// Names and first values are those of PEFT: "LAYER.lora_A.weight" [rank, in_features], drawn as a
// Linear's, and "LAYER.lora_B.weight" [out_features, rank], zeros.
//
// Make it before the optimizer and DistributedDataParallel, and after the weights were loaded: the
// model's own state has the adapters' parameters, too, unless they are merged.
//
// Lifetime: the model outlives it. Thread safety: none.
// Errors: misuse, with nothing changed, for a pattern that fits no layer, or one that is no such
// Linear, that is cut over ranks, has an adapter already, or whose parameters ranks share; for a
// rank or alpha that is not positive, and a dropout outside of [0, 1). merge(), unmerge() and
// remove(): misuse, with nothing changed, for weights that ranks share, and within
// edit_parameters(), which runs on rank 0 alone: end DistributedDataParallel first.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state.h"

namespace lockstep::nn {

class LinearImpl;
class LoraAdapter;

}  // namespace lockstep::nn

namespace lockstep {

struct LoraOptions {
  // Rows of A. Each adapter has rank * (in_features + out_features) elements.
  std::int64_t rank = 8;

  double alpha = 16;   // The adapter's result is multiplied by alpha / rank.
  double dropout = 0;  // Share of the adapter's inputs that is dropped in training mode.

  // Patterns of layers all of whose parameters train and are saved, too, such as a new "head".
  std::vector<std::string> also_train = {};
};

class LOCKSTEP_API Lora final : public Stateful {
 public:
  // `layers` are patterns of names.
  Lora(torch::nn::Module& model, const std::vector<std::string>& layers,
       const LoraOptions& options = {});

  // What trains, under the names in the model: for save_safetensors(), for example.
  const NamedTensors& named_parameters() const { return parameters_; }
  std::vector<at::Tensor> parameters() const;

  // Adds the adapters to the weights and takes them out of the model, which then computes, and
  // saves, the weights alone. unmerge() subtracts them again, which gives back the weights but for
  // a rounding. Every rank calls these. Errors: in addition, misuse for unmerge() if a layer has
  // another adapter by now.
  void merge();
  void unmerge();

  // Merges for good. Optimizers and DistributedDataParallel objects of the adapters are of no more
  // use.
  void remove();

  // The named_parameters() alone. Errors: misuse while they are merged.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  struct AdaptedLayer {
    std::shared_ptr<nn::LinearImpl> layer;
    std::shared_ptr<nn::LoraAdapter> adapter;
  };

  void require_separate(const char* call) const;
  void require_own_weights(const char* call) const;
  bool is_of_adapter(const at::Tensor& parameter) const;

  std::map<std::string, AdaptedLayer> layers_;
  NamedTensors parameters_;
  bool is_merged_ = false;
};

}  // namespace lockstep
