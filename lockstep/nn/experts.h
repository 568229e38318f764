// A mixture of experts: a router sends each token to the top_k of num_experts MLPs.
//
//   lockstep::nn::Experts experts(lockstep::nn::ExpertsOptions(512, 2048, /*num_experts=*/8));
//   const auto [y, balance_loss, z_loss, tokens_per_expert, dropped] = experts(x);  // See below.
//   loss = loss + 0.01 * balance_loss;
//
// A linear router and a softmax give each token a probability per expert. The output is the sum of
// the top_k experts' outputs, weighted by probability (see normalize). Among equals, the first
// expert is chosen.
//
// Expert parallelism (docs/guide/model-parallel.md): ExpertParallel leaves num_experts / ranks
// experts on each rank. Ranks process their own tokens; a rank may have none. forward() calls
// all_gather (over replicas also all_reduce) for counts, and all_to_all for tokens and results.
//
// Gradients are those of the mean of all ranks' losses. backward() averages experts' gradients
// itself, also over replicas and under no_sync(); DistributedDataParallel over all these ranks
// averages the other parameters.
//
// Determinism: the same bits in every run with the same number of ranks.
// Thread safety, Errors: as nn/layers.h. In a cut layer, forward() and backward() are collective,
// and Blocking is as tensor/differentiable.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/nn/parallel_layer.h"

namespace lockstep::nn {

struct LOCKSTEP_API ExpertsOptions {
  ExpertsOptions(std::int64_t features, std::int64_t hidden_features, std::int64_t num_experts);

  TORCH_ARG(std::int64_t, features);
  TORCH_ARG(std::int64_t, hidden_features);
  TORCH_ARG(std::int64_t, num_experts);
  TORCH_ARG(std::int64_t, top_k) = 2;

  // Divides the top_k probabilities by their sum (Mixtral, Jiang et al., 2024). No effect for top_k
  // = 1, where the router would get no gradient (Switch Transformer: Fedus, Zoph and Shazeer,
  // 2021).
  TORCH_ARG(bool, normalize) = true;

  // An expert is down(silu(gate(x)) * up(x)) (Shazeer, 2020); otherwise down(gelu(up(x))).
  TORCH_ARG(bool, swiglu) = false;

  // By default no choice is dropped. Otherwise an expert takes at most
  //   ceil(capacity_factor * top_k * tokens / num_experts)
  // choices of one call on one rank. First choices have priority over second choices, and so on;
  // then earlier tokens (GShard, Lepikhin et al., 2020, algorithm 1). A dropped choice adds
  // nothing; the token's other weights do not change.
  TORCH_ARG(std::optional<double>, capacity_factor) = std::nullopt;
};

// Losses are float32 scalars, or float64 if the input is. In a whole layer, losses and counts are
// those of this rank's tokens. In a cut layer, the mean of a loss over ranks and replicas is the
// loss of all their tokens.
struct ExpertsOutput {
  at::Tensor output;  // Shape and type of the input.

  // The loss of Switch Transformer (equation 4) without its factor alpha. It is num_experts * the
  // sum over experts of (the expert's fraction of all choices) * (its mean probability): 1 if all
  // are equal. Dropped choices count. A cut layer balances all ranks' tokens together (Qiu et al.,
  // 2025).
  at::Tensor balance_loss;

  // The loss of ST-MoE (Zoph et al., 2022), which keeps the logits small: mean of
  // logsumexp(logits)^2.
  at::Tensor z_loss;

  // In a cut layer, over all ranks and replicas, equal on all.
  at::Tensor tokens_per_expert;  // [num_experts], int64, before drops.
  std::int64_t dropped = 0;
};

// For visit_tensors(), and so DistributedDataParallel.
template <class Visit>
void for_each_tensor(const ExpertsOutput& result, Visit& visit) {
  visit(result.output);
  visit(result.balance_loss);
  visit(result.z_loss);
}

class LOCKSTEP_API ExpertsImpl : public torch::nn::Cloneable<ExpertsImpl>, public ParallelLayer {
 public:
  ExpertsImpl(std::int64_t features, std::int64_t hidden_features, std::int64_t num_experts)
      : ExpertsImpl(ExpertsOptions(features, hidden_features, num_experts)) {}

  // Errors: misuse for sizes or a capacity_factor that are not positive, and a top_k outside 1 to
  // num_experts.
  explicit ExpertsImpl(ExpertsOptions options);

  void reset() override;

  // Initialises weights like torch::nn::Linear.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // Input: [..., features]. Errors: misuse, naming a cut layer, for another last size. Unsupported
  // outside CPU memory.
  ExpertsOutput forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  ExpertsOptions options;  // The whole layer's.
  torch::Tensor router;    // [num_experts, features]; whole on each rank.

  // All experts' weights or, once the layer is cut, this rank's.
  torch::Tensor gate;  // [num_experts, hidden_features, features]; undefined without swiglu.
  torch::Tensor up;    // [num_experts, hidden_features, features]
  torch::Tensor down;  // [num_experts, features, hidden_features]

 private:
  Layouts cut_parameters() override;
  torch::Tensor averaged(const torch::Tensor& parameter, const char* what) const;
  torch::Tensor computed(const torch::Tensor& rows, const torch::Tensor& counts) const;
  torch::Tensor sent(const torch::Tensor& rows, const torch::Tensor& counts) const;
};
TORCH_MODULE(Experts);

}  // namespace lockstep::nn
