// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/experts.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::nn::experts_test {
namespace {

using test::expect_near;
using test::fault_of;
using test::fill;
using test::numbers;
using Tensors = std::vector<at::Tensor>;

// Fills weights with values that depend only on their names, in double precision.
Experts filled(const ExpertsOptions& options) {
  Experts experts(options);
  fill(*experts);
  return experts;
}

// --- A plain formulation, token by token ---------------------------------------------------------

struct Plain {
  Tensors outputs;  // Per rank.
  at::Tensor balance_loss, z_loss;
  std::vector<std::int64_t> tokens_per_expert;
  std::int64_t dropped = 0;
};

at::Tensor plain_expert(const ExpertsImpl& layer, std::int64_t expert, const at::Tensor& x) {
  const at::Tensor up = layer.up[expert].matmul(x);
  const at::Tensor hidden =
      layer.gate.defined() ? at::silu(layer.gate[expert].matmul(x)) * up : at::gelu(up);
  return layer.down[expert].matmul(hidden);
}

// `inputs` of each rank: [tokens, features].
Plain plainly(const ExpertsImpl& layer, const Tensors& inputs) {
  const auto& options = layer.options;
  const std::int64_t experts = options.num_experts(), k = options.top_k();
  Plain result;
  result.tokens_per_expert.resize(static_cast<std::size_t>(experts));
  Tensors all_probabilities, all_squares;
  for (const at::Tensor& x : inputs) {
    const double capacity =
        options.capacity_factor()
            ? std::ceil(*options.capacity_factor() * static_cast<double>(k * x.size(0)) /
                        static_cast<double>(experts))
            : std::numeric_limits<double>::infinity();
    std::vector<std::int64_t> load(static_cast<std::size_t>(experts), 0);
    const at::Tensor exponentials = x.matmul(layer.router.t()).exp();
    const at::Tensor sums = exponentials.sum(-1, true);
    const at::Tensor probabilities = exponentials / sums;
    const auto [best, best_experts] = probabilities.topk(k);
    Tensors outputs;
    for (std::int64_t token = 0; token < x.size(0); ++token)
      outputs.push_back(at::zeros({options.features()}, at::kDouble));
    for (std::int64_t choice = 0; choice < k; ++choice)
      for (std::int64_t token = 0; token < x.size(0); ++token) {
        const auto expert = best_experts[token][choice].item<std::int64_t>();
        ++result.tokens_per_expert[static_cast<std::size_t>(expert)];
        if (static_cast<double>(load[static_cast<std::size_t>(expert)]) >= capacity) {
          ++result.dropped;
          continue;
        }
        ++load[static_cast<std::size_t>(expert)];
        at::Tensor weight = best[token][choice];
        if (options.normalize() && k > 1) weight = weight / best[token].sum();
        at::Tensor& output = outputs[static_cast<std::size_t>(token)];
        output = output + weight * plain_expert(layer, expert, x[token]);
      }
    result.outputs.push_back(outputs.empty() ? x * 1 : at::stack(outputs));
    all_probabilities.push_back(probabilities);
    all_squares.push_back(sums.log().pow(2));
  }
  const at::Tensor probabilities = at::cat(all_probabilities);
  const auto tokens = static_cast<double>(probabilities.size(0));
  result.balance_loss = at::zeros({}, at::kDouble);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const double fraction =
        static_cast<double>(result.tokens_per_expert[static_cast<std::size_t>(expert)]) /
        (tokens * static_cast<double>(k));
    result.balance_loss = result.balance_loss + static_cast<double>(experts) * fraction *
                                                    probabilities.select(1, expert).mean();
  }
  result.z_loss = at::cat(all_squares).mean();
  return result;
}

// --- The layer on ranks --------------------------------------------------------------------------

struct Case {
  std::string name;
  ExpertsOptions options;
};

std::vector<Case> cases() {
  const ExpertsOptions plain(6, 5, 12);
  return {{"dropless", ExpertsOptions(plain).top_k(2)},
          {"SwiGLU", ExpertsOptions(plain).top_k(2).swiglu(true).normalize(false)},
          {"top 1", ExpertsOptions(plain).top_k(1)},
          {"capacity", ExpertsOptions(plain).top_k(2).capacity_factor(0.75)},
          {"top 3 and capacity", ExpertsOptions(plain).top_k(3).capacity_factor(0.5).swiglu(true)},
          {"all experts", ExpertsOptions(plain).top_k(12)}};
}

// Ranks have 9, 0, 4 and 6 tokens.
Tensors inputs_of(int ranks) {
  Tensors inputs;
  const std::vector<std::int64_t> tokens{9, 0, 4, 6};
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(
        numbers({tokens[static_cast<std::size_t>(rank)], 6}, 0.4 + rank).set_requires_grad(true));
  return inputs;
}

at::Tensor rank_loss(const at::Tensor& output) {
  return (output * numbers(output.sizes(), 5).cos()).sum();
}

class ExpertsOnRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ExpertsOnRanks, testing::Values(1, 2, 3, 4));

TEST_P(ExpertsOnRanks, ComputeWhatOneProcessDoesWithAllTokens) {
  const int ranks = GetParam();
  for (const Case& c : cases()) {
    const Experts whole = filled(c.options);
    const Tensors inputs = inputs_of(ranks);
    const Plain expected = plainly(*whole, inputs);
    at::Tensor loss = 0.1 * expected.balance_loss + 0.01 * expected.z_loss;
    for (const at::Tensor& output : expected.outputs) loss = loss + rank_loss(output) / ranks;
    loss.backward();
    EXPECT_EQ(expected.dropped > 0, c.options.capacity_factor().has_value()) << c.name;

    run_in_process(ranks, [&](ProcessGroup& group) {
      const std::string what = c.name + " on rank " + std::to_string(group.rank());
      const auto rank = static_cast<std::size_t>(group.rank());
      Experts cut = filled(c.options);
      ASSERT_EQ(cut->mismatch(ExpertParallel(), ranks), "");
      cut->parallelize({ExpertParallel(), group, "experts"});
      EXPECT_EQ(cut->up.size(0), 12 / ranks);
      EXPECT_EQ(sha256(*cut), sha256(*whole)) << what;

      const at::Tensor x = inputs[rank].detach().clone().set_requires_grad(true);
      const ExpertsOutput result = cut(x);
      expect_near(result.output.detach(), expected.outputs[rank].detach(), what + " output");
      EXPECT_EQ(result.dropped, expected.dropped) << what;
      EXPECT_TRUE(result.tokens_per_expert.equal(at::tensor(expected.tokens_per_expert))) << what;
      for (const auto& [ours, theirs] : {std::pair(result.balance_loss, expected.balance_loss),
                                         std::pair(result.z_loss, expected.z_loss)}) {
        const at::Tensor mean = ours.detach().clone();
        all_reduce(mean, group, ReduceOp::average);
        expect_near(mean, theirs.detach(), what + " loss of the router");
      }

      (rank_loss(result.output) + 0.1 * result.balance_loss + 0.01 * result.z_loss).backward();
      expect_near(x.grad(), inputs[rank].grad() * ranks, what + " gradient of the input");
      const Layouts layouts = layouts_of(*cut);
      EXPECT_EQ(layouts.size(), c.options.swiglu() ? 3U : 2U);
      for (const auto& item : cut->named_parameters()) {
        at::Tensor gradient = item.value().grad();
        if (item.key() == "router")
          all_reduce(gradient, group, ReduceOp::average);  // DistributedDataParallel's part.
        else
          gradient = gather_whole(gradient, layouts.at(item.key()));
        expect_near(gradient, whole->named_parameters()[item.key()].grad(), what + item.key());
      }
    });
  }
}

TEST(Experts, ComputeTheSameBeforeTheyAreCut) {
  for (const Case& c : cases()) {
    Experts experts = filled(c.options);
    const at::Tensor x = numbers({3, 4, 6}, 0.7);
    const ExpertsOutput result = experts(x);
    const Plain expected = plainly(*experts, {x.view({12, 6})});
    expect_near(result.output.view({12, 6}), expected.outputs[0], c.name);
    expect_near(result.balance_loss, expected.balance_loss, c.name);
    expect_near(result.z_loss, expected.z_loss, c.name);
    EXPECT_TRUE(at::equal(experts(x).output, result.output)) << "the same bits";
  }
}

// Two pairs of ranks have the same experts.
TEST(Experts, AverageGradientsOverReplicasToo) {
  const ExpertsOptions options(6, 5, 4);
  const Experts whole = filled(options);
  const Tensors inputs = inputs_of(4);
  const Plain expected = plainly(*whole, inputs);
  at::Tensor loss = expected.balance_loss;
  for (const at::Tensor& output : expected.outputs) loss = loss + rank_loss(output) / 4;
  loss.backward();
  run_in_process(4, [&](ProcessGroup& world) {
    const ProcessGroup ep = world.split(world.rank() / 2), dp = world.split(world.rank() % 2);
    Experts cut = filled(options);
    cut->parallelize({ExpertParallel({.replicas = dp}), ep, "experts"});
    const auto result = cut(inputs[static_cast<std::size_t>(world.rank())].detach());
    (rank_loss(result.output) + result.balance_loss).backward();
    all_reduce(cut->router.mutable_grad(), world, ReduceOp::average);
    expect_near(cut->router.grad(), whole->router.grad(), "router");
    for (const auto& [name, layout] : layouts_of(*cut))
      expect_near(gather_whole(cut->named_parameters()[name].grad(), layout),
                  whole->named_parameters()[name].grad(), name);
  });
}

TEST(Experts, GoToTheFirstOfEqualOnes) {
  Experts experts(ExpertsOptions(2, 3, 5).top_k(2).capacity_factor(2));
  const at::NoGradGuard no_grad;
  experts->router.zero_();
  const ExpertsOutput result = experts(at::ones({10, 2}));
  EXPECT_TRUE(result.tokens_per_expert.equal(at::tensor({10, 10, 0, 0, 0}, at::kLong)));
  EXPECT_EQ(result.dropped, 4) << "the capacity is 8";
  EXPECT_FALSE(result.output[7].equal(at::zeros({2})));
  EXPECT_TRUE(result.output[8].equal(at::zeros({2}))) << "later tokens are dropped";
  EXPECT_FLOAT_EQ(result.balance_loss.item<float>(), 1);
  EXPECT_FLOAT_EQ(result.z_loss.item<float>(), std::pow(std::log(5.F), 2.F));
}

TEST(Experts, BeginWithTheWeightsOfLinearLayers) {
  torch::manual_seed(2);
  const Experts experts(ExpertsOptions(16, 64, 3).swiglu(true));
  for (const at::Tensor& weight : {experts->gate, experts->up, experts->router}) {
    EXPECT_LE(weight.abs().max().item<double>(), 0.25);
    EXPECT_GE(weight.abs().max().item<double>(), 0.2);
  }
  EXPECT_LE(experts->down.abs().max().item<double>(), 0.125);
  EXPECT_FALSE(Experts(16, 64, 3)->gate.defined());
}

TEST(Experts, RouteHalfPrecisionInFloat) {
  Experts experts(ExpertsOptions(8, 16, 4));
  experts->to(at::kBFloat16);
  const ExpertsOutput result = experts(numbers({5, 8}, 1).to(at::kBFloat16));
  EXPECT_EQ(result.output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(result.balance_loss.scalar_type(), at::kFloat);
}

TEST(Experts, RejectInvalidSizesAndOptions) {
  Experts experts(4, 8, 6);
  EXPECT_EQ(experts->mismatch(ExpertParallel(), 4),
            "num_experts 6 cannot be cut evenly over 4 ranks: 4 or 8 can");
  EXPECT_EQ(experts->mismatch(RowwiseParallel(), 2),
            "RowwiseParallel cannot cut a mixture of experts");
  std::string text;
  EXPECT_EQ(fault_of([] { Experts(ExpertsOptions(4, 8, 6).top_k(7)); }, &text), Fault::misuse);
  EXPECT_NE(text.find("top_k 7 is not one of 1 to 6 experts"), text.npos) << text;
  EXPECT_EQ(fault_of([] { Experts(ExpertsOptions(4, 8, 6).capacity_factor(0)); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { Experts(4, 0, 6); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { experts->forward(at::zeros({2, 5})); }, &text), Fault::misuse);
  EXPECT_NE(text.find("last size is 5, and there are 4 features"), text.npos) << text;
  experts->place("block.experts", {});
  EXPECT_EQ(fault_of([&] { experts->forward(at::zeros({2, 5})); }, &text), Fault::misuse);
  EXPECT_NE(text.find("block.experts: an input of shape [2, 5], and it takes 4 features"),
            text.npos)
      << text;
}

}  // namespace
}  // namespace lockstep::nn::experts_test
