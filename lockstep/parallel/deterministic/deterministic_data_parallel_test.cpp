// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdlib>
#include <iostream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/data_parallel_calls.h"

namespace lockstep::parallel::deterministic_data_parallel_test {
namespace {

using test::fault_of;

// --- Bits, in processes, since they share no generator ------------------------------------------

struct Net : torch::nn::Module {
  Net()
      : tokens(32, 16),
        conv(torch::nn::Conv2dOptions(1, 8, 3).padding(1)),
        norm(torch::nn::LayerNormOptions({64})),
        hidden(8 * 16 * 12, 64),
        out(64, 32) {
    register_module("tokens", tokens);
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::relu(conv(tokens(x).unsqueeze(1)));
    y = torch::dropout(y, 0.3, is_training()).flatten(1);
    return out(torch::dropout(torch::gelu(norm(hidden(y))), 0.2, is_training()));
  }

  torch::nn::Embedding tokens;
  torch::nn::Conv2d conv;
  torch::nn::LayerNorm norm;
  torch::nn::Linear hidden;
  torch::nn::Linear out;
};

torch::optim::Adam adam_of(Net& net) {
  std::vector<torch::Tensor> biases;
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : net.parameters())
    (parameter.dim() == 1 ? biases : weights).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights);
  groups.emplace_back(biases,
                      std::make_unique<torch::optim::AdamOptions>(
                          torch::optim::AdamOptions(3e-3).betas(std::make_tuple(0.8, 0.9))));
  return torch::optim::Adam(groups, torch::optim::AdamOptions(1e-3).weight_decay(1e-2));
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr std::int64_t global_batch = 24;

void train(const test::Rank&) {
  auto world = init_process_group();
  const std::int64_t from = std::stoll(setting("FROM"));
  const std::int64_t to = std::stoll(setting("TO"));
  const std::string folder = setting("FOLDER");
  torch::manual_seed(from == 0 ? 7 : 1234 + world.rank());
  auto net = std::make_shared<Net>();
  torch::optim::Adam adam = adam_of(*net);
  if (from > 0) {
    torch::load(net, folder + "/net");
    torch::load(adam, folder + "/adam");
  }
  DeterministicDataParallel ddp(net, world, {.microbatches = std::stoi(setting("MICROBATCHES"))});
  for (std::int64_t step = from; step < to; ++step) {
    const auto rows =  // As DistributedSampler deals them.
        torch::arange(step * global_batch + world.rank(), (step + 1) * global_batch, world.size());
    const auto inputs = (rows.unsqueeze(1) * 7 + torch::arange(12) * 5) % 32;
    const auto targets = (rows * rows) % 32;
    adam.zero_grad(/*set_to_none=*/step % 2 == 0);
    const double loss = ddp.train_microbatches(step, [&](const GlobalMicrobatch& microbatch) {
      return torch::cross_entropy_loss(ddp(microbatch.of(inputs)), microbatch.of(targets));
    });
    adam.step();
    std::cout << "loss " << std::hexfloat << loss << '\n';
  }
  std::cout << "sha256 " << sha256(*net) << std::endl;
  if (world.rank() == 0 && !folder.empty()) {
    torch::save(net, folder + "/net");
    torch::save(adam, folder + "/adam");
  }
  destroy_process_group(world);
}

const test::Ranks training("deterministic training", train);

std::string printed(int ranks, int microbatches, int from, int to, const std::string& folder = {}) {
  ::setenv("MICROBATCHES", std::to_string(microbatches).c_str(), 1);
  ::setenv("FROM", std::to_string(from).c_str(), 1);
  ::setenv("TO", std::to_string(to).c_str(), 1);
  ::setenv("FOLDER", folder.c_str(), 1);
  const auto exits = training.run(ranks);
  EXPECT_TRUE(test::all_succeeded(exits));
  for (const auto& exit : exits) EXPECT_EQ(exit.output, exits[0].output);
  return exits[0].output;
}

std::string hash_in(const std::string& output) { return output.substr(output.find("sha256")); }

TEST(DeterministicDataParallel, OneTwoAndFourRanksGiveTheSameBits) {
  const std::string one = printed(1, 8, 0, 6);
  EXPECT_NE(one.find("sha256"), one.npos);
  EXPECT_EQ(printed(2, 8, 0, 6), one);
  EXPECT_EQ(printed(4, 8, 0, 6), one);
}

TEST(DeterministicDataParallel, NumbersThatAreNoPowersOfTwoGiveTheSameBits) {
  const std::string one = printed(1, 6, 0, 4);
  EXPECT_EQ(printed(2, 6, 0, 4), one);
  EXPECT_EQ(printed(3, 6, 0, 4), one);
}

TEST(DeterministicDataParallel, ATrainingGoesOnWithTheSameBitsOnAnotherNumberOfRanks) {
  const test::ScratchDirectory folder;
  const std::string whole = hash_in(printed(1, 4, 0, 6));
  for (const int ranks : {4, 1}) {
    printed(2, 4, 0, 3, folder.path());
    EXPECT_EQ(hash_in(printed(ranks, 4, 3, 6, folder.path())), whole) << ranks;
  }
}

// --- Everything else, in threads ----------------------------------------------------------------

torch::nn::Linear linear() {
  torch::nn::Linear net(6, 3);
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& weights : net->parameters())
    weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin());
  return net;
}

torch::Tensor inputs(std::int64_t rows) {
  return torch::sin(torch::arange(rows * 6, torch::kDouble)).view({rows, 6});
}

void for_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  run_in_process(ranks, body);
  at::set_num_threads(before);
}

TEST(DeterministicDataParallel, GradientsAreMeansOverAllSamples) {
  for_ranks(2, [](ProcessGroup& world) {
    auto whole = linear();
    const torch::Tensor all = inputs(12);
    const torch::Tensor loss = whole(all).pow(2).mean();
    loss.backward();
    const torch::Tensor mine = all.slice(0, world.rank(), {}, 2);
    for (const bool over_samples : {false, true}) {
      auto net = linear();
      DeterministicDataParallel ddp(
          net, world,
          {.microbatches = 4,
           .mean = over_samples ? GradientMean::over_samples : GradientMean::over_ranks});
      for (int step = 0; step < 2; ++step) {
        const double mean = ddp.train_microbatches(step, [&](const GlobalMicrobatch& microbatch) {
          const torch::Tensor out = ddp(microbatch.of(mine)).pow(2).mean(1);
          if (!over_samples) return out.mean();
          ddp.count_samples(static_cast<double>(out.size(0)));
          return out.sum();
        });
        EXPECT_NEAR(mean, loss.item<double>(), 1e-12);
        EXPECT_TRUE(torch::allclose(net->weight.grad(), whole->weight.grad()));
        EXPECT_TRUE(torch::allclose(net->bias.grad(), whole->bias.grad()));
      }
    }
  });
}

TEST(DeterministicDataParallel, OptionsThatCannotBeHonouredAreErrors) {
  for_ranks(2, [](ProcessGroup& world) {
    const auto fault = [&](const DeterministicOptions& options) {
      auto net = linear();
      return fault_of([&] { DeterministicDataParallel ddp(net, world, options); });
    };
    EXPECT_EQ(fault({}), Fault::misuse);
    EXPECT_EQ(fault({.microbatches = 3}), Fault::misuse);
    EXPECT_EQ(fault({.microbatches = -2}), Fault::misuse);
    EXPECT_EQ(fault({.microbatches = 2, .threads = 2}), Fault::misuse);
    EXPECT_EQ(fault({.microbatches = world.rank() == 0 ? 2 : 3}), Fault::mismatch);
    EXPECT_EQ(fault({.microbatches = 2, .threads = 1 + world.rank()}), Fault::mismatch);
    EXPECT_EQ(fault({.microbatches = 2, .seed = world.rank() == 0 ? 0U : 1U}), Fault::mismatch);
    EXPECT_EQ(fault({.microbatches = 2, .find_unused_parameters = world.rank() == 0}),
              Fault::mismatch);
  });
}

TEST(DeterministicDataParallel, ARefusedModuleKeepsItsValuesAndAddresses) {
  for_ranks(2, [](ProcessGroup& world) {
    auto net = linear();
    {
      const torch::NoGradGuard no_grad;
      net->weight.add_(world.rank());
    }
    const torch::Tensor values = net->weight.detach().clone();
    const void* const address = net->weight.const_data_ptr();
    for (const bool share : {false, true})
      for (const DeterministicOptions& options : std::vector<DeterministicOptions>{
               {.microbatches = 3, .share_parameters = share},
               {.microbatches = 2, .threads = 2, .share_parameters = share}}) {
        EXPECT_EQ(fault_of([&] { DeterministicDataParallel ddp(net, world, options); }),
                  Fault::misuse);
        EXPECT_TRUE(torch::equal(net->weight, values));
        EXPECT_EQ(net->weight.const_data_ptr(), address);
      }
    const DistributedDataParallel ddp(net, world, {.share_parameters = true});
    EXPECT_TRUE(ddp.shares_parameters());
    world.barrier();
  });
}

TEST(DeterministicDataParallel, TrainsAScript) {
  for_ranks(2, [](ProcessGroup& world) {
    torch::jit::Module script("Layer");
    script.register_parameter("weight", torch::ones({3}).requires_grad_(), /*is_buffer=*/false);
    script.define("def forward(self, x):\n  return (x * self.weight).sum()\n");
    DeterministicDataParallel ddp(script, world, {.microbatches = 4});
    const double loss = ddp.train_microbatches(0, [&](const GlobalMicrobatch& microbatch) {
      return ddp(torch::full({3}, static_cast<float>(microbatch.index))).toTensor();
    });
    EXPECT_EQ(loss, 4.5);
    EXPECT_TRUE(torch::equal(script.attr("weight").toTensor().grad(), torch::full({3}, 1.5F)));
  });
}

using Plain = DistributedDataParallel<torch::nn::LinearImpl>;
using Deterministic = DeterministicDataParallel<torch::nn::LinearImpl>;
static_assert(test::HasMicrobatches<Deterministic> && !test::HasMicrobatches<Plain>);
static_assert(test::HasNoSync<Plain> && !test::HasNoSync<Deterministic>);
static_assert(!test::HasNoSync<DataParallelBase>);  // It may be a Deterministic.
static_assert(test::HasMeanLoss<Plain> && !test::HasMeanLoss<Deterministic>);
static_assert(test::HasJoin<Plain> && !test::HasJoin<Deterministic>);
static_assert(test::HasCommunicationHooks<Plain> && !test::HasCommunicationHooks<Deterministic>);
static_assert(test::HasShardedGradients<Plain> && !test::HasShardedGradients<Deterministic>);
static_assert(test::HasNoiseScale<Plain> && !test::HasNoiseScale<Deterministic>);

TEST(DeterministicDataParallel, BackwardOutsideOfAStepIsMisuse) {
  for_ranks(2, [](ProcessGroup& world) {
    auto net = linear();
    DeterministicDataParallel ddp(net, world, {.microbatches = 2});
    EXPECT_EQ(ddp.microbatches(), 2);
    EXPECT_FALSE(ddp.stats().is_overlapped);
    std::string text;
    EXPECT_EQ(fault_of([&] { ddp(inputs(2)).sum().backward(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("train_microbatches()"), text.npos) << text;
  });
}

TEST(DeterministicDataParallel, RejectsAndNamesStateThatDependsOnSamples) {
  for_ranks(2, [](ProcessGroup& world) {
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
    DeterministicDataParallel ddp(net, world, {.microbatches = 2});
    const auto loss_of = [&](const GlobalMicrobatch& microbatch) {
      return ddp(microbatch.of(torch::ones({4, 6}))).sum();
    };
    std::string text;
    EXPECT_EQ(fault_of([&] { ddp.train_microbatches(0, loss_of); }, &text), Fault::unsupported);
    EXPECT_NE(text.find(": 1."), text.npos) << text;
    (*net)[1]->eval();
    ddp.train_microbatches(0, loss_of);

    auto other = linear();
    const torch::Tensor calls = other->register_buffer("calls", torch::zeros({}));
    DeterministicDataParallel counting(other, world, {.microbatches = 2});
    const auto counted = [&](const GlobalMicrobatch& microbatch) {
      if (world.rank() == 1) calls.add_(1);
      return counting(microbatch.of(inputs(2))).sum();
    };
    EXPECT_EQ(fault_of([&] { counting.train_microbatches(0, counted); }, &text),
              Fault::unsupported);
    EXPECT_NE(text.find("on rank 1 a microbatch has changed calls"), text.npos) << text;
    EXPECT_FALSE(other->weight.grad().defined());

    // max_norm makes rows shorter as they are read.
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(3, 5).max_norm(0.01));
    DeterministicDataParallel reading(table, world, {.microbatches = 2});
    const auto read = [&](const GlobalMicrobatch& microbatch) {
      return reading(microbatch.of(torch::zeros({2}, torch::kLong))).sum();
    };
    EXPECT_EQ(fault_of([&] { reading.train_microbatches(0, read); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("has changed weight"), text.npos) << text;
  });
}

struct Choice : torch::nn::Module {
  Choice() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({3}));
    c = register_parameter("c", torch::ones({3}));
  }
  torch::Tensor forward(bool with_b) { return with_b ? (a * b).sum() : a.sum(); }

  torch::Tensor a;
  torch::Tensor b;
  torch::Tensor c;
};

TEST(DeterministicDataParallel, UnusedParametersAreZeroIfAnotherMicrobatchUsesThemAndElseAnError) {
  for_ranks(2, [](ProcessGroup& world) {
    auto net = std::make_shared<Choice>();
    DeterministicDataParallel ddp(net, world, {.microbatches = 4, .find_unused_parameters = true});
    ddp.train_microbatches(
        0, [&](const GlobalMicrobatch& microbatch) { return ddp(microbatch.index == 3); });
    EXPECT_TRUE(torch::equal(net->a.grad(), torch::ones({3})));
    EXPECT_TRUE(torch::equal(net->b.grad(), torch::full({3}, 0.25)));
    EXPECT_FALSE(net->c.grad().defined());

    auto strict = std::make_shared<Choice>();
    strict->c.set_requires_grad(false);
    DeterministicDataParallel whole(strict, world, {.microbatches = 4});
    std::string text;
    EXPECT_EQ(fault_of(
                  [&] {
                    whole.train_microbatches(0, [&](const GlobalMicrobatch& microbatch) {
                      return whole(microbatch.index != 3);
                    });
                  },
                  &text),
              Fault::misuse);
    EXPECT_NE(text.find("on rank 1 backward() gave no gradient to b:"), text.npos) << text;
    whole.train_microbatches(0, [&](const GlobalMicrobatch&) { return whole(true); });
    EXPECT_FALSE(strict->c.grad().defined());
  });
}

TEST(DeterministicDataParallel, GradientsThatAreNotFiniteFailOrAreSkipped) {
  for_ranks(2, [](ProcessGroup& world) {
    for (const NonFinite choice : {NonFinite::fail, NonFinite::skip, NonFinite::ignore}) {
      auto net = linear();
      DeterministicDataParallel ddp(net, world, {.microbatches = 4, .non_finite = choice});
      const auto run = [&] {
        ddp.train_microbatches(5, [&](const GlobalMicrobatch& microbatch) {
          return ddp(inputs(1)).sum() * (microbatch.index == 1 ? INFINITY : 1);
        });
      };
      if (choice == NonFinite::fail) {
        EXPECT_EQ(fault_of(run), Fault::corrupt);
      } else {
        run();
      }
      EXPECT_EQ(net->bias.grad().defined(), choice == NonFinite::ignore);
      EXPECT_EQ(ddp.non_finite().has_value(), choice != NonFinite::ignore);
    }
  });
}

TEST(DeterministicDataParallel, AnExceptionInOneMicrobatchEndsTheStepOnAllRanksAndLeavesNothing) {
  for_ranks(2, [](ProcessGroup& world) {
    auto net = linear();
    DeterministicDataParallel ddp(net, world, {.microbatches = 4});
    const auto run = [&](int fails) {
      ddp.train_microbatches(0, [&](const GlobalMicrobatch& microbatch) {
        if (microbatch.index == fails) throw std::runtime_error("no");
        return ddp(inputs(1)).sum();
      });
    };
    if (world.rank() == 1) {
      EXPECT_THROW(run(3), std::runtime_error);
    } else {
      std::string text;
      EXPECT_EQ(fault_of([&] { run(3); }, &text), Fault::aborted);
      EXPECT_NE(text.find("rank 1: backward() ended with an exception: std::runtime_error: no"),
                text.npos)
          << text;
    }
    EXPECT_FALSE(net->bias.grad().defined());
    run(-1);
    EXPECT_TRUE(net->bias.grad().defined());
    const std::int64_t step = world.rank();
    EXPECT_EQ(fault_of([&] {
                ddp.train_microbatches(
                    step, [&](const GlobalMicrobatch&) { return ddp(inputs(1)).sum(); });
              }),
              Fault::mismatch);
  });
}

TEST(DeterministicDataParallel, RandomNumbersFollowFromSeedStepAndMicrobatchAndDoNotDisturbOthers) {
  for_ranks(1, [](ProcessGroup& world) {
    auto net = linear();
    const auto drawn = [&](std::uint64_t seed, std::int64_t step) {
      DeterministicDataParallel ddp(net, world, {.microbatches = 2, .seed = seed});
      std::vector<double> numbers;
      ddp.train_microbatches(step, [&](const GlobalMicrobatch&) {
        numbers.push_back(torch::rand({}, torch::kDouble).item<double>());
        return ddp(inputs(1)).sum();
      });
      return numbers;
    };
    torch::manual_seed(1);
    const double undisturbed = torch::rand({}).item<double>();
    torch::manual_seed(1);
    const auto first = drawn(0, 0);
    EXPECT_EQ(torch::rand({}).item<double>(), undisturbed);
    EXPECT_EQ(drawn(0, 0), first);
    std::set<double> all;
    for (const std::uint64_t seed : {0, 1})
      for (const std::int64_t step : {0, 1, 2})
        for (const double number : drawn(seed, step)) all.insert(number);
    EXPECT_EQ(all.size(), 12U);
  });
}

}  // namespace
}  // namespace lockstep::parallel::deterministic_data_parallel_test
