// LoRA (Hu et al., 2021): freezes a model and trains two small matrices for each chosen weight.
//
//   lockstep::Lora lora(*model, {"blocks.*.attention.query"}, {.rank = 8, .alpha = 16});
//   lockstep::DistributedDataParallel ddp(model, world);  // Averages the adapters alone.
//   lockstep::AdamW adamw(lora.parameters(), 1e-4);
//
// Adapted layers compute y = x W^T + b + (alpha / rank) x A^T B^T. Create a Lora after loading the
// weights, before the optimizer and DistributedDataParallel. Layers are lockstep::nn::Linear
// anywhere, or torch::nn::Linear in a torch::nn::Sequential, which the Lora replaces. It freezes
// all other parameters except `also_train`. The model's state includes unmerged adapters. See
// docs/guide/lora.md.
//
// Lifetime: the model outlives the Lora. Thread safety: none.
// Errors: misuse, before any change, for a pattern that matches no layer. Misuse also for a layer
// that is not such a Linear, is cut over ranks, has an adapter, or shares its parameters between
// ranks. Misuse for a model on meta, a rank or alpha <= 0, or a dropout outside [0, 1).

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

}  // namespace lockstep::nn

namespace lockstep::lora {

class LoraAdapter;

}  // namespace lockstep::lora

namespace lockstep {

struct LoraOptions {
  // Rows of A. An adapter has rank * (in_features + out_features) elements.
  std::int64_t rank = 8;

  double alpha = 16;   // Results are multiplied by alpha / rank.
  double dropout = 0;  // Share of inputs dropped in training.

  // Patterns of layers to train and save completely, such as a new "head".
  std::vector<std::string> also_train = {};
};

class LOCKSTEP_API Lora final : public Stateful {
 public:
  // `layers` are patterns of names. Parameters have PEFT's names and initial values:
  // "LAYER.lora_A.weight" [rank, in_features], as a Linear's, and "LAYER.lora_B.weight"
  // [out_features, rank], zeros.
  Lora(torch::nn::Module& model, const std::vector<std::string>& layers,
       const LoraOptions& options = {});

  // The trained parameters by name in the model, for example for save_safetensors().
  const NamedTensors& named_parameters() const { return parameters_; }
  std::vector<at::Tensor> parameters() const;

  // merge() adds the adapters to the weights and removes them from the model; unmerge() restores
  // the weights up to rounding. Every rank calls these.
  // Errors of merge(), unmerge() and remove(): misuse, before any change, within edit_parameters(),
  // or if ranks share a weight (share_parameters). Then destroy DistributedDataParallel, and give
  // each weight its own memory with set_data(clone()). unmerge(): also misuse if
  // a layer has another adapter now.
  void merge();
  void unmerge();

  // Merges permanently. The adapters' optimizers and DistributedDataParallel become unusable.
  void remove();

  // named_parameters() only. Errors: misuse while merged.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  struct AdaptedLayer {
    std::shared_ptr<nn::LinearImpl> layer;
    std::shared_ptr<lora::LoraAdapter> adapter;
  };

  void require_separate(const char* call) const;
  void require_own_weights(const char* call) const;
  bool is_of_adapter(const at::Tensor& parameter) const;

  std::map<std::string, AdaptedLayer> layers_;
  NamedTensors parameters_;
  bool is_merged_ = false;
};

}  // namespace lockstep
