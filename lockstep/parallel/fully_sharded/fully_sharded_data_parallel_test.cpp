// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <concepts>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/data_parallel_calls.h"
#include "tests/rigs/sharded_net.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::fully_sharded_data_parallel_test {
namespace {

using test::Block;
using test::fault_of;
using test::loss_of;
using test::Net;
using test::parameters_of;
using test::Rank;
using test::Ranks;
using test::tokens;
using test::vocabulary;
using test::width;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

const FullyShardedOptions by_block{.units = {"blocks.*"}, .find_unused_parameters = true};

FullyShardedOptions overlapped(bool overlap) {
  FullyShardedOptions options = by_block;
  options.overlap = overlap;
  return options;
}

struct Pair {
  explicit Pair(const ProcessGroup& world, const FullyShardedOptions& options = by_block)
      : plain(plain_net, world, {.find_unused_parameters = true}),
        sharded(sharded_net, world, options) {}

  template <class Compare>
  void compare(Compare compare) const {
    const auto a = plain_net->named_parameters(), b = sharded_net->named_parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(compare(a[i].value(), b[i].value())) << a[i].key();
  }

  void expect_equal() const {
    compare([](const auto& a, const auto& b) { return torch::equal(a, b); });
  }

  const std::shared_ptr<Net> plain_net = std::make_shared<Net>();
  const std::shared_ptr<Net> sharded_net = std::make_shared<Net>();
  DistributedDataParallel<Net> plain;
  FullyShardedDataParallel<Net> sharded;
};

void pass(Pair& pair, int seed, bool synchronized = true, bool uses_all = false) {
  const auto plain_alone = pair.plain.no_sync(!synchronized);
  loss_of(pair.plain(tokens(seed), uses_all)).backward();
  const auto sharded_alone = pair.sharded.no_sync(!synchronized);
  loss_of(pair.sharded(tokens(seed), uses_all)).backward();
}

template <class Optimizer, class Options>
void train_both(Pair& pair, const ProcessGroup& world, const Options& options, int steps) {
  Optimizer plain(parameters_of(*pair.plain_net), options);
  FullyShardedOptimizer<Optimizer> sharded(pair.sharded, parameters_of(*pair.sharded_net), options);
  for (int step = 0; step < steps; ++step) {
    plain.zero_grad();
    sharded.zero_grad();
    if (step % 3 == 0) pass(pair, 50 * step + world.rank(), /*synchronized=*/false);
    pass(pair, 100 + 10 * step + world.rank(), true, step % 4 == 1 && world.rank() == 1);
    for (const torch::Tensor& parameter : pair.sharded_net->parameters())
      ASSERT_FALSE(parameter.grad().defined());
    plain.step();
    sharded.step();
  }
}

template <class Optimizer, class Options>
void expect_the_same(const ProcessGroup& world, const Options& options) {
  for (const bool overlap : {false, true}) {
    Pair pair(world, overlapped(overlap));
    EXPECT_EQ(pair.sharded.stats().is_overlapped, overlap);
    train_both<Optimizer>(pair, world, options, 12);
    // Norms are sums of doubles in another order.
    pair.compare([](const auto& a, const auto& b) {
      return std::derived_from<Optimizer, LayerwiseOptimizer> && a.scalar_type() == torch::kDouble
                 ? torch::allclose(a, b, 1e-12, 1e-14)
                 : torch::equal(a, b);
    });
  }
}

const Ranks optimizers("fully sharded: optimizers", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  expect_the_same<Adam>(world, AdamOptions(1e-3).weight_decay(0.01));
  expect_the_same<AdamW>(world, AdamWOptions(1e-3));
  expect_the_same<SGD>(world, SGDOptions(1e-2).momentum(0.9));
  expect_the_same<torch::optim::Adam>(world, AdamOptions(1e-3).amsgrad(true));
  expect_the_same<LARS>(world, LARSOptions(0.1).weight_decay(0.01));
  expect_the_same<LAMB>(world, LAMBOptions(1e-2).weight_decay(0.1));
  destroy_process_group(world);
});

TEST(FullySharded, EqualsDistributedDataParallelBitForBit) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(optimizers.run(ranks))) << ranks;
}

const Ranks three("fully sharded: three ranks", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  Pair pair(world);
  train_both<SGD>(pair, world, SGDOptions(1e-2), 4);
  pair.compare([](const auto& a, const auto& b) { return torch::allclose(a, b, 1e-6, 1e-7); });
  destroy_process_group(world);
});

TEST(FullySharded, MatchesWithinRoundingOnThreeRanks) { EXPECT_TRUE(all_succeeded(three.run(3))); }

const Ranks several("fully sharded: several optimizers", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  FullyShardedOptions options = by_block;
  options.mean = GradientMean::over_samples;
  const auto train = [&](auto& model, auto make_first, auto make_second) {
    auto all = parameters_of(*model.module());
    const std::vector<torch::Tensor> first{all.back()};
    all.pop_back();
    auto adam = make_first(first);
    auto sgd = make_second(all);
    for (int step = 0; step < 6; ++step) {
      adam->zero_grad();
      sgd->zero_grad();
      const torch::Tensor x = tokens(step).slice(0, 0, 1 + 2 * rank.rank);
      model.count_samples(static_cast<double>(x.size(0)));
      model(x).square().sum().mul(0.01).backward();
      adam->step();
      sgd->step();
    }
    return model.module();
  };
  DistributedDataParallel plain(
      std::make_shared<Net>(), world,
      {.find_unused_parameters = true, .mean = GradientMean::over_samples});
  FullyShardedDataParallel sharded(std::make_shared<Net>(), world, options);
  const AdamOptions of_adam(1e-3);
  const SGDOptions of_sgd(1e-2);
  const auto expected = train(
      plain, [&](const auto& some) { return std::make_unique<Adam>(some, of_adam); },
      [&](const auto& some) { return std::make_unique<SGD>(some, of_sgd); });
  const auto net = train(
      sharded,
      [&](const auto& some) {
        return std::make_unique<FullyShardedOptimizer<Adam>>(sharded, some, of_adam);
      },
      [&](const auto& some) {
        return std::make_unique<FullyShardedOptimizer<SGD>>(sharded, some, of_sgd);
      });
  const auto a = expected->named_parameters(), b = net->named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::allclose(a[i].value(), b[i].value(), 1e-5, 1e-7)) << a[i].key();
  EXPECT_FALSE(torch::equal(net->scale, Net().scale));
  destroy_process_group(world);
});

TEST(FullySharded, MayHaveSeveralOptimizersAndAverageOverSamples) {
  EXPECT_TRUE(all_succeeded(several.run(2)));
}

// --- Gradients -----------------------------------------------------------------------------------

const Ranks clipped("fully sharded: clipped", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    Pair pair(world);
    SGD plain(parameters_of(*pair.plain_net), SGDOptions(1e-2));
    FullyShardedOptimizer<SGD> sharded(pair.sharded, parameters_of(*pair.sharded_net),
                                       SGDOptions(1e-2));
    pass(pair, world.rank());
    const double expected =
        clip_grad_norm_(parameters_of(*pair.plain_net), 1e-3, norm_type).item<double>();
    EXPECT_NEAR(sharded.clip_grad_norm_(1e-3, norm_type), expected, 1e-6 * expected);
    plain.step();
    sharded.step();
    pair.compare([](const auto& a, const auto& b) { return torch::allclose(a, b, 1e-6, 1e-9); });
  }
  destroy_process_group(world);
});

TEST(FullySharded, ClipsTheNormOfAllFragments) { EXPECT_TRUE(all_succeeded(clipped.run(2))); }

const Ranks accumulated("fully sharded: accumulated", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  Pair pair(world);
  SGD plain(parameters_of(*pair.plain_net), SGDOptions(1e-2));
  FullyShardedOptimizer<SGD> sharded(pair.sharded, parameters_of(*pair.sharded_net),
                                     SGDOptions(1e-2));
  const auto half = [&](auto& model) { (loss_of(model(tokens(world.rank()))) * 0.5).backward(); };
  loss_of(pair.plain(tokens(world.rank()))).backward();
  half(pair.sharded);
  sharded.zero_grad();
  half(pair.sharded);
  pair.sharded_net->zero_grad();  // Drops nothing.
  half(pair.sharded);
  plain.step();
  sharded.step();
  pair.expect_equal();
  const torch::Tensor before = pair.sharded_net->scale.clone();
  sharded.step();
  EXPECT_TRUE(torch::equal(pair.sharded_net->scale, before));
  destroy_process_group(world);
});

TEST(FullySharded, AddsTheMeansOfSeveralPasses) { EXPECT_TRUE(all_succeeded(accumulated.run(2))); }

// Gradients of at most two units exist at a time.
template <class Module>
void expect_freed(const Rank& rank, const ProcessGroup& world, int passes) {
  auto net = std::make_shared<Module>();
  torch::nn::ModuleListImpl& blocks = *net->blocks;
  for (const auto& block : blocks) block->as<Block>()->unused.set_requires_grad(false);
  FullyShardedDataParallel fsdp(net, world, {.units = {"blocks.*"}, .overlap = true});
  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::size_t most = 0, all = 0;
  for (const auto& block : blocks)
    for (const torch::Tensor& weight :
         {block->as<Block>()->up->weight, block->as<Block>()->down->weight})
      weight.register_hook([&](const torch::Tensor& gradient) {
        if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++all;
        storages.emplace_back(gradient.storage().getWeakStorageImpl());
        std::size_t alive = 0;
        for (const auto& storage : storages) alive += storage.use_count() > 0 ? 1 : 0;
        most = std::max(most, alive);
      });
  for (int pass = 0; pass < passes; ++pass) {
    sgd.zero_grad();
    storages.clear();
    all = most = 0;
    loss_of(fsdp(tokens(rank.rank))).backward();
  }
  EXPECT_EQ(all, 6U);
  EXPECT_LE(most, 4U);
  for (const auto& storage : storages) EXPECT_EQ(storage.use_count(), 0U);
  std::size_t fragments = 0;
  for (const auto& group : sgd.local().param_groups())
    for (const torch::Tensor& fragment : group.params())
      if (fragment.grad().defined()) fragments += fragment.grad().numel();
  std::size_t whole = 0;
  for (const torch::Tensor& parameter : parameters_of(*net))
    if (parameter.requires_grad()) whole += parameter.numel();
  EXPECT_NEAR(static_cast<double>(fragments), static_cast<double>(whole) / 2, 200);
}

// backward() completes its first unit last.
struct BlocksFirst : torch::nn::Module {
  BlocksFirst() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<Block>());
    register_module("blocks", blocks);
    register_module("embedding", embedding);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding->forward(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, false);
    return x;
  }

  torch::nn::ModuleList blocks;
  torch::nn::Embedding embedding{vocabulary, width};
};

const Ranks freed("fully sharded: freed", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  expect_freed<Net>(rank, world, 1);
  expect_freed<BlocksFirst>(rank, world, 2);
  destroy_process_group(world);
});

TEST(FullySharded, GradientsOfUnitsAreFreedInBackward) { EXPECT_TRUE(all_succeeded(freed.run(2))); }

// --- Units ---------------------------------------------------------------------------------------

using Names = std::vector<std::vector<std::string>>;

template <class... Options>
Names units_with(Options... options) {
  Names names;
  run_in_process(1, [&](ProcessGroup& group) {
    names = FullyShardedDataParallel(std::make_shared<Net>(), group,
                                     FullyShardedOptions{.units = {options...}})
                .units();
  });
  return names;
}

TEST(FullySharded, UnitsAreThoseOfThePatternsAndTheRest) {
  const Names by_number = units_with();
  ASSERT_EQ(by_number.size(), 4U);
  EXPECT_EQ(by_number[0],
            (std::vector<std::string>{"blocks.2.unused", "blocks.2.up.weight", "blocks.2.up.bias",
                                      "blocks.2.down.weight", "blocks.2.down.bias"}));
  EXPECT_EQ(by_number[3], (std::vector<std::string>{"tied", "scale"}));
  EXPECT_EQ(units_with("blocks.*"), by_number);
  EXPECT_EQ(units_with("blocks.[01]", "blocks.*"), by_number);
  EXPECT_EQ(units_with("blocks").size(), 2U);
  EXPECT_EQ(units_with("blocks.*.up", "blocks.*").size(), 7U);
  EXPECT_EQ(units_with("blocks.*", "blocks.*.up"), by_number);
}

using Replicated = DistributedDataParallel<Net>;
using Sharded = FullyShardedDataParallel<Net>;
static_assert(test::HasCommunicationHooks<Replicated> && !test::HasCommunicationHooks<Sharded>);
static_assert(test::HasShardedGradients<Replicated> && !test::HasShardedGradients<Sharded>);
static_assert(test::HasJoin<Replicated> && !test::HasJoin<Sharded>);
static_assert(test::HasNoSync<Replicated> && test::HasNoSync<Sharded>);
static_assert(!test::HasMicrobatches<Sharded>);
static_assert(test::HasNoiseScale<Replicated> && !test::HasNoiseScale<Sharded>);

TEST(FullySharded, RejectsInvalidOptionsAndCalls) {
  run_in_process(2, [](ProcessGroup& group) {
    const auto net = std::make_shared<Net>();
    std::string text;
    EXPECT_EQ(
        fault_of([&] { FullyShardedDataParallel(net, group, {.units = {"layers.*"}}); }, &text),
        Fault::misuse);
    EXPECT_NE(text.find("'layers.*'"), text.npos) << text;

    EXPECT_EQ(fault_of([&] { FullyShardedDataParallel(net, group, overlapped(group.rank() == 0)); },
                       &text),
              Fault::mismatch);
    FullyShardedDataParallel fsdp(std::make_shared<Net>(), group, by_block);
    const auto other = torch::ones({3}).set_requires_grad(true);
    EXPECT_EQ(
        fault_of([&] { FullyShardedOptimizer<SGD>(fsdp, std::vector{other}, SGDOptions(1e-2)); }),
        Fault::misuse);
  });
}

void make_mistakes(const Rank& rank, const ProcessGroup& world, bool overlap) {
  auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, overlapped(overlap));
  const auto backward = [&] { loss_of(fsdp(tokens(rank.rank))).backward(); };
  backward();
  std::string text;
  EXPECT_EQ(fault_of(backward, &text), Fault::misuse);
  EXPECT_NE(text.find("no FullyShardedOptimizer"), text.npos) << text;
  {
    std::vector<torch::Tensor> some;
    for (const torch::Tensor& parameter : parameters_of(*net))
      if (!parameter.is_same(net->scale)) some.push_back(parameter);
    FullyShardedOptimizer<SGD> sgd(fsdp, some, SGDOptions(1e-2));
    EXPECT_EQ(fault_of(backward, &text), Fault::misuse);
    EXPECT_NE(text.find("parameter scale has a gradient and is in no"), text.npos) << text;
  }

  FullyShardedOptimizer<SGD> sgd(fsdp, parameters_of(*net), SGDOptions(1e-2));
  const auto weights = [&] { return net->scale.clone(); };
  const torch::Tensor before = weights();
  EXPECT_EQ(fault_of(
                [&] {
                  const double factor =
                      rank.rank == 0 ? 1 : std::numeric_limits<double>::quiet_NaN();
                  (loss_of(fsdp(tokens(1))) * factor).backward();
                },
                &text),
            Fault::corrupt);
  EXPECT_NE(text.find("rank 1"), text.npos) << text;
  sgd.step();
  EXPECT_TRUE(torch::equal(weights(), before)) << "no gradient is left";

  const auto hook =
      net->blocks[1]->as<Block>()->up->weight.register_hook([&](const torch::Tensor&) {
        if (rank.rank == 1) throw std::runtime_error("for a test");
      });
  if (rank.rank == 1)
    EXPECT_THROW(backward(), std::runtime_error);
  else
    EXPECT_EQ(fault_of(backward, &text), Fault::aborted);
  net->blocks[1]->as<Block>()->up->weight.remove_hook(hook);
  backward();
  sgd.step();
  EXPECT_FALSE(torch::equal(weights(), before));
}

const Ranks mistakes("fully sharded: mistakes", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  for (const bool overlap : {false, true}) make_mistakes(rank, world, overlap);
  destroy_process_group(world);
});

TEST(FullySharded, AnErrorOfOneRankReachesAllAndLeavesNoGradient) {
  EXPECT_TRUE(all_succeeded(mistakes.run(2)));
}

// --- State ---------------------------------------------------------------------------------------

const Ranks resumed("fully sharded: resumed", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const auto step = [&](auto& model, auto& optimizer, int seed) {
    optimizer.zero_grad();
    loss_of(model(tokens(seed + rank.rank))).backward();
    optimizer.step();
  };
  auto net = std::make_shared<Net>();
  FullyShardedDataParallel fsdp(net, world, by_block);
  FullyShardedOptimizer<AdamW> adamw(fsdp, parameters_of(*net), AdamWOptions(1e-3));
  for (int i = 0; i < 3; ++i) step(fsdp, adamw, i);

  const std::string file = rank.scratch / "state.pt";
  adamw.consolidate_state_dict();
  if (rank.rank == 0) {
    torch::serialize::OutputArchive weights, state;
    net->save(weights);
    weights.save_to(file + ".net");
    adamw.save(state);
    state.save_to(file);
  }
  world.barrier();
  auto plain_net = std::make_shared<Net>();
  torch::serialize::InputArchive weights, state;
  weights.load_from(file + ".net");
  plain_net->load(weights);
  DistributedDataParallel ddp(plain_net, world, {.find_unused_parameters = true});
  AdamW plain(parameters_of(*plain_net), AdamWOptions(1e-3));
  state.load_from(file);
  plain.load(state);
  for (int i = 3; i < 6; ++i) {
    step(fsdp, adamw, i);
    step(ddp, plain, i);
  }
  const auto a = net->named_parameters(), b = plain_net->named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i].value(), b[i].value())) << a[i].key();
  destroy_process_group(world);
});

TEST(FullySharded, StateGoesOnInAPlainOptimizer) { EXPECT_TRUE(all_succeeded(resumed.run(2))); }

}  // namespace
}  // namespace lockstep::parallel::fully_sharded_data_parallel_test
