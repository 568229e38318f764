// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/tied_weights.h"

#include <gtest/gtest.h>
#include <torch/nn/options/linear.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <functional>
#include <stdexcept>
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
#include "lockstep/parallel/pipeline/sparse_sum.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/pipeline_layers.h"

namespace lockstep::tied_weights_test {
namespace {

using test::fault_of;
using test::small_layers::Block;
using test::small_layers::expect_close;
using test::small_layers::expect_equal;
using test::small_layers::fill;
using test::small_layers::Gradients;
using test::small_layers::gradients_of;
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

torch::Tensor table_of(const Pipeline& pipeline) {
  for (const auto& [name, parameter] : pipeline.named_parameters())
    if (name == "embed.table.weight") return parameter;
  return {};
}

void freeze_shared_parameters_later(const ProcessGroup& world) {
  Pipeline pipeline(language_model(), world, {.microbatches = 2});
  torch::Tensor weight = table_of(pipeline);
  if (world.rank() == 1) weight.requires_grad_(false);
  pipeline.step(tokens(), next_token);
  EXPECT_EQ(weight.grad().defined(), world.rank() == 0);
}

TEST(TiedWeights, ARankThatFreezesItsCopyLaterHoldsNobodyUp) {
  run_in_process(2, [](ProcessGroup& world) { freeze_shared_parameters_later(world); });
}

// --- Fully sharded, in another type --------------------------------------------------------------

torch::Tensor next_token_in_floats(const torch::Tensor& logits, const Microbatch& part) {
  return next_token(logits.to(torch::kFloat), part);
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
      constexpr double lr = 8;  // Large relative to the rounding of weights.
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

// --- Failures ------------------------------------------------------------------------------------

struct FailingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x * 1;
    if (y.requires_grad())
      y.register_hook([this](const torch::Tensor&) {
        if (++backwards_ == 2) throw std::runtime_error("a bad layer");
      });
    return y;
  }

 private:
  int backwards_ = 0;
};
TORCH_MODULE(Failing);

// The ranks before and after the throwing rank share a weight; the last one waits for the sum.
void fail_between(const ProcessGroup& world) {
  LayerList layers;
  layers.add("embed", [] { return test::small_layers::Embed(); });
  layers.add("failing", [] { return Failing(); });
  layers.add("head", [] { return test::small_layers::Head(); });
  layers.tie("head.linear.weight", "embed.table.weight");
  Pipeline pipeline(layers, world, {.microbatches = 2, .cut = {1, 2}});
  try {
    pipeline.step(tokens(), next_token);
    ADD_FAILURE() << "no exception on rank " << world.rank();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("a bad layer"), text.npos) << text;
    if (world.rank() != 1) {
      EXPECT_NE(text.find("1B1: backward of microbatch 1 in stage 1"), text.npos) << text;
    }
  }
  world.barrier();
}

TEST(TiedWeights, AnExceptionReachesARankThatWaitsForTheirSum) {
  run_in_process(
      3, [](ProcessGroup& world) { fail_between(world); }, std::chrono::seconds(20));
}

// --- On several hosts ----------------------------------------------------------------------------

// Uses its weight twice.
struct MiddleImpl : torch::nn::Module {
  MiddleImpl() {
    register_module("linear", linear);
    fill(*this, 5);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + linear(x).matmul(linear->weight); }
  torch::nn::Linear linear{torch::nn::LinearOptions(width, 11).bias(false)};
};
TORCH_MODULE(Middle);

// The second step adds to the gradients of the first.
Gradients of_three_stages(PipelineSchedule schedule, const ProcessGroup& world) {
  LayerList layers;
  layers.add("embed", [] { return test::small_layers::Embed(); });
  layers.add("middle", [] { return Middle(); });
  layers.add("h", [] { return Block(1); });
  layers.add("head", [] { return test::small_layers::Head(); });
  for (const char* const name : {"middle.linear.weight", "head.linear.weight"})
    layers.tie(name, "embed.table.weight");
  PipelineOptions options{.schedule = schedule, .microbatches = 3};
  if (world.size() == 3) options.cut = {1, 3};
  Pipeline pipeline(layers, world, options);
  for (int step = 0; step < 2; ++step) pipeline.step(tokens(), next_token);
  return gradients_of(pipeline.named_parameters());
}

void expect_sums_of_three_stages(const ProcessGroup& world) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
    Gradients alone;
    run_in_process(1, [&](ProcessGroup& self) { alone = of_three_stages(schedule, self); });
    const Gradients here = of_three_stages(schedule, world);
    expect_close(here, alone);
    const torch::Tensor all = all_gather(here.at("embed.table.weight"), world);
    for (int other = 1; other < world.size(); ++other)
      EXPECT_TRUE(torch::equal(all[other], all[0]));
  }
}

const test::Ranks on_three_hosts("tied weights on three hosts", [](const test::Rank& rank) {
  torch::set_num_threads(1);
  auto world = test::join_across_hosts(rank);
  EXPECT_TRUE(parallel::SparseSum::suits(world));
  expect_sums_of_three_stages(world);
  fail_between(world);
  destroy_process_group(world);
});

TEST(TiedWeights, AreEqualForThreeStagesOnThreeHosts) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const test::HostLayout layout{"abc", "gloo"};
  layout.set();
  EXPECT_TRUE(all_succeeded(on_three_hosts.run(layout.ranks())));
  test::HostLayout::unset();
}

const test::Ranks on_two_hosts("tied weights, three on two hosts", [](const test::Rank& rank) {
  torch::set_num_threads(1);
  auto world = test::join_across_hosts(rank);
  EXPECT_FALSE(parallel::SparseSum::suits(world));
  for (const int on_the_first : {0, 1})
    if (const auto apart = world.new_group({on_the_first, 2})) {
      EXPECT_TRUE(parallel::SparseSum::suits(*apart));
    }
  expect_sums_of_three_stages(world);
  destroy_process_group(world);
});

TEST(TiedWeights, AddGradientsOfTwoStagesOnAHostBeforeSending) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const test::HostLayout layout{"aab", "shm+gloo"};
  layout.set();
  EXPECT_TRUE(all_succeeded(on_two_hosts.run(layout.ranks())));
  test::HostLayout::unset();
}

// Two stages, each of two data parallel ranks.
torch::Tensor after_a_step(const ProcessGroup& world, bool fully_sharded) {
  const DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}});
  PipelineOptions options{.microbatches = 2, .data_parallel = mesh["dp"]};
  if (fully_sharded) options.fully_sharded = FullyShardedOptions{.units = {"h.*"}};
  Pipeline pipeline(language_model(), mesh["pp"], options);
  const torch::Tensor batch = (tokens() + mesh.rank("dp")) % 11;
  const auto step = [&](auto& optimizer) {
    pipeline.step(batch, [&](const torch::Tensor& logits, const Microbatch& part) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(batch).flatten());
    });
    optimizer.step();
    world.barrier();
    return table_of(pipeline).detach().clone();
  };
  const torch::optim::SGDOptions sgd_options(0.5);
  if (!fully_sharded) {
    SGD sgd(pipeline.parameters(), sgd_options);
    return step(sgd);
  }
  FullyShardedOptimizer<SGD> sgd(*pipeline.data_parallel(), pipeline.parameters(), sgd_options);
  return step(sgd);
}

const test::Ranks with_data_parallel("tied weights, data parallel", [](const test::Rank& rank) {
  torch::set_num_threads(1);
  auto world = test::join_across_hosts(rank);
  for (const bool fully_sharded : {false, true}) {
    torch::Tensor on_one_host;
    run_in_process(world.size(), [&](ProcessGroup& threads) {
      const torch::Tensor weight = after_a_step(threads, fully_sharded);
      if (threads.rank() == world.rank()) on_one_host = weight;
    });
    EXPECT_TRUE(torch::equal(after_a_step(world, fully_sharded), on_one_host)) << fully_sharded;
  }
  freeze_shared_parameters_later(world.split(world.rank() % 2));
  destroy_process_group(world);
});

TEST(TiedWeights, MatchOneHostForDataParallelStages) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const test::HostLayout layout{"aabb", "shm+gloo"};
  layout.set();
  EXPECT_TRUE(all_succeeded(with_data_parallel.run(layout.ranks())));
  test::HostLayout::unset();
}

// The first stage's rank dies when the other one waits for the sum.
const test::Ranks one_is_killed("tied weights, one rank is killed", [](const test::Rank& rank) {
  torch::set_num_threads(1);
  auto world = test::join_across_hosts(rank, std::chrono::seconds(20));
  Pipeline pipeline(language_model(), world, {.microbatches = 2});
  int backwards = 0;
  if (world.rank() == 0)
    table_of(pipeline).register_hook([&](const torch::Tensor&) {
      if (++backwards == 4) ::raise(SIGKILL);
    });
  try {
    for (;;) pipeline.step(tokens(), next_token);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("end of a step: sum of tied weights' gradients, rank 1"), text.npos)
        << text;
    ASSERT_TRUE(error.failure()) << text;
    EXPECT_EQ(error.failure()->rank, 0) << text;
  }
});

TEST(TiedWeights, ARankThatIsKilledBeforeTheirSumIsNamed) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const test::HostLayout layout{"ab", "shm+gloo"};
  layout.set();
  const auto exits = one_is_killed.run(layout.ranks());
  EXPECT_EQ(exits[0].signal, SIGKILL) << exits[0].output;
  EXPECT_EQ(exits[1].code, 0) << exits[1].output;
  test::HostLayout::unset();
}

}  // namespace
}  // namespace lockstep::tied_weights_test
