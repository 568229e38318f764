// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/tied_weights.h"

#include <gtest/gtest.h>
#include <torch/nn/options/linear.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "tests/fault_of.h"
#include "tests/rigs/pipeline_layers.h"

namespace lockstep::tied_weights_test {
namespace {

using test::fault_of;
using test::small_layers::Block;
using test::small_layers::fill;
using test::small_layers::language_model;
using test::small_layers::next_token;
using test::small_layers::tokens;
using test::small_layers::width;

// --- Cut over tensor parallel ranks --------------------------------------------------------------

struct EmbedImpl : torch::nn::Module {
  EmbedImpl() {
    register_module("table", table);
    fill(*this, 3);
  }
  torch::Tensor forward(const torch::Tensor& x) { return table(x); }
  nn::Embedding table{12, width};
};
TORCH_MODULE(Embed);

struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    register_module("linear", linear);
    fill(*this, 4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x); }
  nn::Linear linear{torch::nn::LinearOptions(width, 12).bias(false)};
};
TORCH_MODULE(Head);

// The loss of one step, with a plan that cuts one, both or none of two tied weights.
double loss_of_one_step(const DeviceMesh& mesh, bool cuts_table, bool cuts_head) {
  LayerList layers;
  layers.add("embed", [] { return Embed(); });
  layers.add("h", [] { return Block(1); });
  layers.add("head", [] { return Head(); });
  layers.tie("head.linear.weight", "embed.table.weight");
  ParallelPlan plan;
  if (cuts_table) plan.emplace_back("embed.table", RowwiseParallel());
  if (cuts_head) plan.emplace_back("head.linear", ColwiseParallel());
  layers.parallelize(mesh["tp"], plan);
  Pipeline pipeline(layers, mesh["pp"], {.microbatches = 2});
  return pipeline.step(tokens(), [&](const torch::Tensor& logits, const Microbatch& part) {
    const torch::Tensor targets = part.of(tokens()).flatten();
    return cuts_head ? cross_entropy(logits.flatten(0, 1), targets, mesh["tp"])
                     : torch::cross_entropy_loss(logits.flatten(0, 1), targets);
  });
}

TEST(TiedWeights, AreCutAlikeOrNotAtAll) {
  for (const int pp : {1, 2})
    run_in_process(2 * pp, [&](ProcessGroup& world) {
      const DeviceMesh mesh(world, {{"pp", pp}, {"tp", 2}});
      const double whole = loss_of_one_step(mesh, false, false);
      EXPECT_NEAR(loss_of_one_step(mesh, true, true), whole, 1e-5);
      for (const bool cuts_table : {true, false}) {
        std::string text;
        EXPECT_EQ(fault_of([&] { loss_of_one_step(mesh, cuts_table, !cuts_table); }, &text),
                  Fault::misuse);
        EXPECT_NE(text.find("'embed.table.weight' is "), text.npos) << text;
        EXPECT_NE(text.find("'head.linear.weight' is "), text.npos) << text;
        EXPECT_NE(text.find(cuts_table ? "'embed.table'" : "'head.linear'"), text.npos) << text;
      }
    });
}

// --- Frozen weights, and other types -------------------------------------------------------------

TEST(TiedWeights, AreBothTrainedOrBothFrozenAndOfOneType) {
  const auto with_head = [](const std::function<void(torch::nn::Module&)>& change) {
    LayerList layers;
    const LayerList whole = language_model();
    for (std::size_t i = 0; i < whole.size(); ++i)
      layers.add(whole.name(i), [&, i] {
        pipeline::Layer layer = whole.make(i);
        if (whole.name(i) == "head") change(*layer.module);
        return layer;
      });
    layers.tie("head.linear.weight", "embed.table.weight");
    return fault_of(
        [&] { run_in_process(2, [&](ProcessGroup& world) { Pipeline pipeline(layers, world); }); });
  };
  EXPECT_EQ(with_head([](torch::nn::Module& head) {
              for (torch::Tensor& each : head.parameters()) each.requires_grad_(false);
            }),
            Fault::misuse);
  EXPECT_EQ(with_head([](torch::nn::Module& head) { head.to(torch::kDouble); }), Fault::misuse);
}

TEST(TiedWeights, ARankThatFreezesItsCopyLaterHoldsNobodyUp) {
  run_in_process(2, [](ProcessGroup& world) {
    Pipeline pipeline(language_model(), world, {.microbatches = 2});
    const NamedTensors parameters = pipeline.named_parameters();
    torch::Tensor weight = parameters.front().second;
    for (const auto& [name, parameter] : parameters)
      if (name == "embed.table.weight") weight = parameter;
    if (world.rank() == 1) weight.requires_grad_(false);
    pipeline.step(tokens(), next_token);
    EXPECT_EQ(weight.grad().defined(), world.rank() == 0);
  });
}

// --- Fully sharded, in another type --------------------------------------------------------------

torch::Tensor next_token_in_floats(const torch::Tensor& logits, const Microbatch& part) {
  return next_token(logits.to(torch::kFloat), part);
}

torch::Tensor table_of(const Pipeline& pipeline) {
  for (const auto& [name, parameter] : pipeline.named_parameters())
    if (name == "embed.table.weight") return parameter;
  return {};
}

TEST(TiedWeights, AreFullyShardedInAnotherType) {
  torch::Tensor gradient;
  run_in_process(1, [&](ProcessGroup& self) {
    Pipeline pipeline(language_model(), self, {.microbatches = 2});
    pipeline.step(tokens(), next_token);
    gradient = table_of(pipeline).grad();
  });
  for (const int pp : {1, 2})
    run_in_process(2 * pp, [&](ProcessGroup& world) {
      const DeviceMesh mesh(world, {{"pp", pp}, {"dp", 2}});
      Pipeline pipeline(
          language_model(), mesh["pp"],
          {.microbatches = 2,
           .data_parallel = mesh["dp"],
           .fully_sharded = FullyShardedOptions{.units = {"h.*"}, .param_type = torch::kBFloat16}});
      constexpr double lr = 8;  // Steps are large beside the rounding of weights.
      FullyShardedOptimizer<SGD> sgd(*pipeline.data_parallel(), pipeline.parameters(),
                                     torch::optim::SGDOptions(lr));
      const torch::Tensor before = table_of(pipeline).to(torch::kFloat, false, /*copy=*/true);
      pipeline.step(tokens(), next_token_in_floats);
      sgd.step();
      world.barrier();
      const torch::Tensor step = (before - table_of(pipeline).to(torch::kFloat)) / lr;
      EXPECT_TRUE(torch::allclose(step, gradient, 0.1, 2e-3)) << step - gradient;
    });
}

}  // namespace
}  // namespace lockstep::tied_weights_test
