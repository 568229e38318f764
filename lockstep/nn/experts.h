// A mixture of experts: a router sends each token to the best few of many MLPs.
//
//   lockstep::nn::Experts experts(lockstep::nn::ExpertsOptions(512, 2048, /*num_experts=*/8));
//   const auto [y, balance_loss, z_loss, tokens_per_expert, dropped] = experts(x);
//   loss = loss + 0.01 * balance_loss;
//
// Routing: the softmax of a linear router gives each token a probability for each expert. The
// token goes to the top_k experts with the largest ones, of equal ones to the first. Its output is
// the sum of theirs, weighted by the probabilities, after these are divided by their sum
// (`normalize`; Mixtral, Jiang et al., 2024). With top_k = 1 they never are, as the router would
// get no gradient (Switch Transformer: Fedus, Zoph and Shazeer, 2021).
//
// Capacity: by default no choice is dropped. With a capacity_factor, an expert takes at most
//   ceil(capacity_factor * top_k * tokens / num_experts)
// of the tokens of one call on one rank: a "group" of GShard (Lepikhin et al., 2020, algorithm 1).
// First choices have priority over second ones, and so on; among equal choices, earlier tokens have
// priority. A choice that is dropped adds nothing to its token's output, and the weights of the
// token's other choices stay as they are. Megatron-Core's drop_policy "position" is the same but
// for the choices' priority.
//
// Experts over ranks: parallelize_module(model, mesh["ep"], {{"...", ExpertParallel()}}) leaves
// each rank num_experts / ranks of them. Each rank goes on with its own tokens, as with data
// parallelism. Tokens travel to the ranks of their experts and back, in two all_to_all of as many
// rows as are needed, after an all_gather of their numbers. With replicas, an all_reduce of these
// serves the balance loss. Results are those of the whole layer. A rank may have no token.
//
// Before the layer is cut, it knows of no group: the losses and numbers of its router are those of
// each rank's own tokens, with data or context parallelism, too.
//
// Gradients are those of the mean of all ranks' losses. Experts' gradients become that in
// backward() itself, on the rank that has the expert; those of other parameters by a
// DistributedDataParallel over all these ranks, which leaves experts alone:
//   const DeviceMesh mesh(world, {{"dp", -1}, {"ep", 2}});
//   parallelize_module(*model, mesh["ep"], {{"*.experts", ExpertParallel({mesh["dp"]})}});
//   DistributedDataParallel ddp(model, world);
// Every backward() averages experts' gradients over replicas, under no_sync() too.
//
// Determinism: results have the same bits in every run. Sums of gradients over tokens have another
// order on another number of ranks.
// Blocking, Thread safety, Errors: as nn/layers.h. forward() and backward() are collective over the
// group once the layer is cut.

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
  TORCH_ARG(bool, normalize) = true;

  // An expert is down(silu(gate(x)) * up(x)) (Shazeer, 2020); otherwise down(gelu(up(x))).
  TORCH_ARG(bool, swiglu) = false;

  // Such as 1.25. None: no choice is dropped.
  TORCH_ARG(std::optional<double>, capacity_factor) = std::nullopt;
};

// Losses are numbers in float32, or float64 if the input is. The mean over ranks of each is the
// loss of the tokens of all ranks, replicas too.
struct ExpertsOutput {
  at::Tensor output;  // As the input: [..., features].

  // Switch Transformer's (equation 4) without its factor alpha: num_experts * sum over experts of
  // (the part of all choices that are this expert) * (its mean probability). It is 1 when all are
  // equal. Choices that are dropped count, as in Megatron-Core's switch_load_balancing_loss_func().
  // Balance is that of all ranks' tokens, so one rank's may be of one kind (Qiu et al., 2025).
  at::Tensor balance_loss;

  // ST-MoE's (Zoph et al., 2022): the mean of logsumexp(logits)^2. Keeps the logits small.
  at::Tensor z_loss;

  // Choices of all ranks, replicas too; the numbers are equal on them.
  at::Tensor tokens_per_expert;  // [num_experts], int64, before some are dropped.
  std::int64_t dropped = 0;
};

// For visit_tensors(): DistributedDataParallel finds the tensors in a module's result.
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

  // Errors: misuse for sizes that are not positive, for a top_k that is not one of 1 to
  // num_experts, and for a capacity_factor that is not positive.
  explicit ExpertsImpl(ExpertsOptions options);

  void reset() override;

  // Each weight is drawn as that of a torch::nn::Linear.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // Errors: misuse unless the input's last size is `features`, naming the layer in a model that is
  // cut; unsupported unless the input is in CPU memory.
  ExpertsOutput forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  ExpertsOptions options;  // Of the whole layer.
  torch::Tensor router;    // [num_experts, features]; whole on each rank.

  // Weights of all experts, or of this rank's.
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
