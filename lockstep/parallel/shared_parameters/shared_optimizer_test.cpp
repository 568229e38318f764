// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <set>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::parallel::shared_optimizer_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

// No number of ranks divides their sizes.
struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("wide", wide);
    register_module("out", out);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    test::fill_in_its_types(*this);
  }

  torch::Tensor forward(const torch::Tensor& x, bool whole = true) {
    const torch::Tensor hidden = torch::relu(wide->forward(conv->forward(x).flatten(1)));
    return whole ? out->forward(hidden) : hidden.slice(1, 0, 7);
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 5, 3)};
  torch::nn::Linear wide{5 * 6 * 6, 371};
  torch::nn::Linear out{371, 7};
};

torch::Tensor inputs(int seed) {
  return torch::cos(torch::arange(4 * 3 * 64) * (0.01 * seed + 0.003)).view({4, 3, 8, 8});
}

torch::Tensor loss_of(const torch::Tensor& output) { return output.square().mean(); }

void expect_equal_weights(const Net& one, const Net& other) {
  const auto a = one.named_parameters();
  const auto b = other.named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i].value(), b[i].value())) << a[i].key();
}

struct Pair {
  explicit Pair(const ProcessGroup& world, DistributedDataParallelOptions options = {})
      : plain(plain_net, world, options), shared(shared_net, world, sharing(options)) {}

  static DistributedDataParallelOptions sharing(DistributedDataParallelOptions options) {
    options.share_parameters = true;
    return options;
  }

  void expect_equal() const { expect_equal_weights(*plain_net, *shared_net); }

  const std::shared_ptr<Net> plain_net = std::make_shared<Net>();
  const std::shared_ptr<Net> shared_net = std::make_shared<Net>();
  DistributedDataParallel<Net> plain;
  DistributedDataParallel<Net> shared;
};

std::vector<OptimizerParamGroup> two_groups(const Net& net, const auto& first, const auto& second) {
  using Options = std::decay_t<decltype(first)>;
  const auto parameters = net.parameters();
  const std::vector<torch::Tensor> a(parameters.begin(), parameters.begin() + 3);
  const std::vector<torch::Tensor> b(parameters.begin() + 3, parameters.end());
  return {OptimizerParamGroup(a, std::make_unique<Options>(first)),
          OptimizerParamGroup(b, std::make_unique<Options>(second))};
}

template <class Optimizer, class Options>
void expect_the_same(const ProcessGroup& world, const Options& first, const Options& second) {
  Pair pair(world);
  Optimizer plain(two_groups(*pair.plain_net, first, second), first);
  SharedOptimizer<Optimizer> shared(pair.shared, two_groups(*pair.shared_net, first, second),
                                    first);
  torch::optim::StepLR plain_schedule(plain, 20, 0.5);
  torch::optim::StepLR shared_schedule(shared, 20, 0.5);
  for (int step = 0; step < 50; ++step) {
    plain.zero_grad();
    shared.zero_grad();
    for (int part = step % 3 == 0 ? 0 : 1; part < 2; ++part) {
      const torch::Tensor x = inputs(100 * part + 10 * step + world.rank());
      const auto plain_alone = pair.plain.no_sync(part == 0);
      loss_of(pair.plain(x)).backward();
      const auto shared_alone = pair.shared.no_sync(part == 0);
      loss_of(pair.shared(x)).backward();
    }
    plain.step();
    shared.step();
    plain_schedule.step();
    shared_schedule.step();
    for (const torch::Tensor& parameter : pair.shared_net->parameters())
      ASSERT_FALSE(parameter.grad().defined());
  }
  pair.expect_equal();
}

const Ranks optimizers("optimizers", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  expect_the_same<Adam>(world, AdamOptions(1e-3),
                        AdamOptions(3e-3).weight_decay(0.01).amsgrad(true));
  expect_the_same<AdamW>(world, AdamWOptions(1e-3), AdamWOptions(3e-3));
  expect_the_same<SGD>(world, SGDOptions(1e-2), SGDOptions(3e-2).momentum(0.9).nesterov(true));
  expect_the_same<torch::optim::Adam>(world, AdamOptions(1e-3), AdamOptions(3e-3));
  expect_the_same<torch::optim::AdamW>(world, AdamWOptions(1e-3), AdamWOptions(3e-3));
  expect_the_same<torch::optim::SGD>(world, SGDOptions(1e-2), SGDOptions(3e-2).momentum(0.9));
  using torch::optim::AdagradOptions;
  expect_the_same<torch::optim::Adagrad>(world, AdagradOptions(1e-2), AdagradOptions(3e-2));
  using torch::optim::RMSpropOptions;
  expect_the_same<torch::optim::RMSprop>(world, RMSpropOptions(1e-3),
                                         RMSpropOptions(3e-3).momentum(0.9).centered(true));
  expect_the_same<LARS>(world, LARSOptions(0.1).weight_decay(0.01),
                        LARSOptions(1e-2).nesterov(true).adapt(false));
  expect_the_same<LAMB>(world, LAMBOptions(1e-2).weight_decay(0.1), LAMBOptions(1e-3).adapt(false));
  destroy_process_group(world);
});

TEST(SharedOptimizer, EqualsThePlainOptimizerBitForBit) {
  EXPECT_TRUE(all_succeeded(optimizers.run(1)));
  EXPECT_TRUE(all_succeeded(optimizers.run(2, 120s)));
  EXPECT_TRUE(all_succeeded(optimizers.run(4, 180s)));
}

TEST(SharedOptimizer, EqualsThePlainOptimizerWhereRanksAreThreads) {
  run_in_process(3, [](ProcessGroup& world) {
    Pair pair(world);
    SGD plain(pair.plain_net->parameters(), SGDOptions(1e-2));
    SharedOptimizer<SGD> shared(pair.shared, pair.shared_net->parameters(), SGDOptions(1e-2));
    for (int step = 0; step < 5; ++step) {
      plain.zero_grad();
      loss_of(pair.plain(inputs(step))).backward();
      loss_of(pair.shared(inputs(step))).backward();
      plain.step();
      shared.step();
    }
    for (std::size_t i = 0; i < pair.plain_net->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(pair.plain_net->parameters()[i], pair.shared_net->parameters()[i],
                                  1e-5, 1e-7));
    world.barrier();
  });
}

// The parameters with a gradient differ between ranks and steps.
const Ranks unused("unused", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  Pair pair(world, {.find_unused_parameters = true});
  pair.plain_net->conv->bias.requires_grad_(false);
  pair.shared_net->conv->bias.requires_grad_(false);
  Adam plain(pair.plain_net->parameters(), AdamOptions(1e-3).weight_decay(0.1));
  SharedOptimizer<Adam> shared(pair.shared, pair.shared_net->parameters(),
                               AdamOptions(1e-3).weight_decay(0.1));
  for (int step = 0; step < 12; ++step) {
    const bool whole = step % 4 == 0 || (step % 4 == 1 && rank.rank == 0);
    plain.zero_grad();
    shared.zero_grad();
    loss_of(pair.plain(inputs(step + rank.rank), whole)).backward();
    loss_of(pair.shared(inputs(step + rank.rank), whole)).backward();
    plain.step();
    shared.step();
  }
  pair.expect_equal();
  destroy_process_group(world);
});

TEST(SharedOptimizer, LeavesFrozenAndUnusedParametersAlone) {
  EXPECT_TRUE(all_succeeded(unused.run(2)));
}

struct Tiny : torch::nn::Module {
  torch::Tensor forward(double x) {
    return (single * x).sum() + (few * x).square().sum().to(torch::kFloat) +
           half.to(torch::kFloat).mul(x).sum() + empty.sum() + twice->sum() * x;
  }

  torch::Tensor single = register_parameter("single", torch::full({1}, 0.5));
  torch::Tensor few = register_parameter("few", torch::full({3}, 2.0, torch::kDouble));
  torch::Tensor half = register_parameter("half", torch::ones({7}, torch::kBFloat16));
  torch::Tensor empty = register_parameter("empty", torch::zeros({0}));
  torch::Tensor* twice = &register_parameter("twice", torch::ones({2, 2}));
  torch::Tensor& again = register_parameter("again", *twice);
};

const Ranks tiny("tiny", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto plain_net = std::make_shared<Tiny>();
  const auto shared_net = std::make_shared<Tiny>();
  DistributedDataParallel plain(plain_net, world);
  DistributedDataParallel shared(shared_net, world, {.share_parameters = true});
  const auto distinct = [](const Tiny& net) {
    return std::vector<torch::Tensor>{net.single, net.few, net.half, net.empty, *net.twice};
  };
  AdamW plain_adam(distinct(*plain_net), AdamWOptions(1e-2));
  SharedOptimizer<AdamW> shared_adam(shared, distinct(*shared_net), AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    plain_adam.zero_grad();
    shared_adam.zero_grad();
    plain(1.0 + step + rank.rank).backward();
    shared(1.0 + step + rank.rank).backward();
    plain_adam.step();
    shared_adam.step();
  }
  for (std::size_t i = 0; i < plain_net->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(plain_net->parameters()[i], shared_net->parameters()[i])) << i;
  destroy_process_group(world);
});

TEST(SharedOptimizer, TakesParametersOfAnySizeAndType) {
  EXPECT_TRUE(all_succeeded(tiny.run(1)));
  EXPECT_TRUE(all_succeeded(tiny.run(4)));
}

const Ranks engine_alone("an engine alone", [](const Rank& rank) {
  auto world = test::join_across_hosts(rank);
  const Fault fault = fault_of([&] {
    DistributedDataParallel(std::make_shared<Tiny>(), world, {.share_parameters = true});
  });
  EXPECT_EQ(fault, Fault::unsupported);
  destroy_process_group(world);
});

TEST(SharedOptimizer, IsRefusedWhereAnEngineMovesAllBytesOfOneHost) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const test::HostLayout layout{"aa", "gloo"};
  layout.set();
  EXPECT_TRUE(all_succeeded(engine_alone.run(layout.ranks())));
  test::HostLayout::unset();
}

const Ranks clipping("clipping", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    Pair pair(world, {.non_finite = NonFinite::ignore});
    SGD plain(pair.plain_net->parameters(), SGDOptions(0.5));
    SharedOptimizer<SGD> shared(pair.shared, pair.shared_net->parameters(), SGDOptions(0.5));
    for (int step = 0; step < 5; ++step) {
      plain.zero_grad();
      shared.zero_grad();
      loss_of(pair.plain(inputs(step + rank.rank))).backward();
      loss_of(pair.shared(inputs(step + rank.rank))).backward();
      const double expected =
          clip_grad_norm_(pair.plain_net->parameters(), 0.01, norm_type).item<double>();
      EXPECT_NEAR(shared.clip_grad_norm_(0.01, norm_type), expected, 1e-5 * expected);
      plain.step();
      shared.step();
    }
    for (std::size_t i = 0; i < pair.plain_net->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(pair.plain_net->parameters()[i], pair.shared_net->parameters()[i],
                                  1e-5, 1e-7));
    // zero_grad(), called through any type, drops the gradients.
    torch::optim::Optimizer& as_any = shared;
    loss_of(pair.shared(inputs(1))).backward();
    shared.clip_grad_norm_(1, norm_type);
    as_any.zero_grad();
    plain.zero_grad();
    loss_of(pair.plain(inputs(2))).backward();
    loss_of(pair.shared(inputs(2))).backward();
    plain.step();
    shared.step();
    for (std::size_t i = 0; i < pair.plain_net->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(pair.plain_net->parameters()[i], pair.shared_net->parameters()[i],
                                  1e-5, 1e-7));
    loss_of(pair.shared(inputs(3)) * std::numeric_limits<float>::max()).backward();
    EXPECT_EQ(fault_of([&] { shared.clip_grad_norm_(1, norm_type, /*error_if_nonfinite=*/true); }),
              Fault::corrupt);
    shared.zero_grad();
    shared.step();  // Without gradients.
  }
  destroy_process_group(world);
});

TEST(SharedOptimizer, ClipsByTheNormOfAllSlices) { EXPECT_TRUE(all_succeeded(clipping.run(3))); }

const Ranks more("more", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  Pair pair(world, {.mean = GradientMean::over_samples});
  const auto halves = [](const Net& net) {
    const auto all = net.parameters();
    return std::pair(std::vector<torch::Tensor>(all.begin(), all.begin() + 2),
                     std::vector<torch::Tensor>(all.begin() + 2, all.end()));
  };
  const auto [plain_a, plain_b] = halves(*pair.plain_net);
  const auto [shared_a, shared_b] = halves(*pair.shared_net);
  Adam plain_first(plain_a, AdamOptions(1e-3));
  SGD plain_second(plain_b, SGDOptions(1e-2));
  SharedOptimizer<Adam> shared_first(pair.shared, shared_a, AdamOptions(1e-3));
  SharedOptimizer<SGD> shared_second(pair.shared, shared_b, SGDOptions(1e-2));
  for (int step = 0; step < 6; ++step) {
    const torch::Tensor x = inputs(step).slice(0, 0, 1 + 2 * rank.rank);  // 1 sample, and 3.
    for (auto* ddp : {&pair.plain, &pair.shared}) {
      ddp->count_samples(static_cast<double>(x.size(0)));
      (*ddp)(x).square().sum().backward();
    }
    plain_first.step();
    plain_second.step();
    shared_first.step();
    shared_second.step();
    pair.plain_net->zero_grad();
  }
  for (std::size_t i = 0; i < pair.plain_net->parameters().size(); ++i)
    EXPECT_TRUE(torch::allclose(pair.plain_net->parameters()[i], pair.shared_net->parameters()[i],
                                1e-5, 1e-7));
  destroy_process_group(world);
});

TEST(SharedOptimizer, MayBeOneOfSeveralAndAverageOverSamples) {
  EXPECT_TRUE(all_succeeded(more.run(2)));
}

// --- In microbatches
// ----------------------------------------------------------------------------------

template <class Ddp, class Optimizer>
void train_in_microbatches(const ProcessGroup& world, Ddp& ddp, Optimizer& adam,
                           const std::function<void()>& clip) {
  const torch::Tensor x = inputs(3).slice(0, world.rank(), torch::nullopt, world.size());
  for (int step = 0; step < 5; ++step) {
    adam.zero_grad();
    ddp.train_microbatches(step, [&](const GlobalMicrobatch& microbatch) {
      return loss_of(torch::dropout(ddp(microbatch.of(x + step)), 0.2, true));
    });
    clip();
    adam.step();
  }
}

const Ranks in_microbatches("in microbatches", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const auto plain_net = std::make_shared<Net>(), shared_net = std::make_shared<Net>();
  DeterministicDataParallel plain(plain_net, world, {.microbatches = 4});
  DeterministicDataParallel shared(shared_net, world,
                                   {.microbatches = 4, .share_parameters = true});
  Adam plain_adam(plain_net->parameters(), AdamOptions(1e-2));
  SharedOptimizer<Adam> shared_adam(shared, shared_net->parameters(), AdamOptions(1e-2));
  train_in_microbatches(world, plain, plain_adam, [] {});
  train_in_microbatches(world, shared, shared_adam, [] {});
  expect_equal_weights(*plain_net, *shared_net);
  train_in_microbatches(world, shared, shared_adam, [&] { shared_adam.clip_grad_norm_(0.001); });
  if (rank.rank == 0) std::cout << sha256(*shared_net) << std::endl;
  destroy_process_group(world);
});

TEST(SharedOptimizer, WithMicrobatchesHasTheSameBitsOnAnyNumberOfRanks) {
  std::set<std::string> hashes;
  for (const int ranks : {1, 2, 4}) {
    const auto exits = in_microbatches.run(ranks);
    EXPECT_TRUE(all_succeeded(exits));
    hashes.insert(exits[0].output);
  }
  EXPECT_EQ(hashes.size(), 1U);
}

// --- State --------------------------------------------------------------------------------------

void steps(DistributedDataParallel<Net>& ddp, torch::optim::Optimizer& optimizer, int from,
           int to) {
  for (int step = from; step < to; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of(ddp(inputs(step)));
      loss.backward();
      return loss;
    });
  }
}

template <class Optimizer, class Options>
void expect_to_go_on(const ProcessGroup& world, const Rank& rank, const Options& options) {
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  SharedOptimizer<Optimizer> whole(ddp, net->parameters(), options);
  EXPECT_EQ(fault_of([&] {
              torch::serialize::OutputArchive archive;
              whole.save(archive);
            }),
            Fault::misuse);
  steps(ddp, whole, 0, 4);
  whole.consolidate_state_dict();
  if (rank.rank == 0) {
    torch::save(net, rank.scratch / "net");
    torch::save(whole, rank.scratch / "state");
  }
  steps(ddp, whole, 4, 8);

  ProcessGroup half = world.split(rank.rank / 2);
  auto resumed = std::make_shared<Net>();
  DistributedDataParallel ddp_resumed(resumed, half, {.share_parameters = true});
  Options others = options;
  SharedOptimizer<Optimizer> on_half(ddp_resumed, resumed->parameters(), others.lr(1));
  ddp_resumed.edit_parameters([&] { torch::load(resumed, rank.scratch / "net"); });
  torch::load(on_half, rank.scratch / "state");
  steps(ddp_resumed, on_half, 4, 8);

  auto alone = std::make_shared<Net>();
  Optimizer plain(alone->parameters(), others.lr(1));
  torch::load(alone, rank.scratch / "net");
  torch::load(plain, rank.scratch / "state");
  ProcessGroup self = world.split(rank.rank);
  DistributedDataParallel ddp_alone(alone, self);
  steps(ddp_alone, plain, 4, 8);
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(net->parameters()[i], resumed->parameters()[i])) << i;
    EXPECT_TRUE(torch::equal(net->parameters()[i], alone->parameters()[i])) << i;
  }
  world.barrier();
}

const Ranks saving("saving", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  expect_to_go_on<Adam>(world, rank, AdamOptions(1e-2).amsgrad(true));
  expect_to_go_on<SGD>(world, rank, SGDOptions(1e-2).momentum(0.9));
  expect_to_go_on<torch::optim::Adagrad>(world, rank, torch::optim::AdagradOptions(1e-2));
  expect_to_go_on<torch::optim::RMSprop>(
      world, rank, torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
  destroy_process_group(world);
});

TEST(SharedOptimizer, GoesOnFromItsArchiveAtAnyNumberOfRanks) {
  EXPECT_TRUE(all_succeeded(saving.run(4)));
}

// --- What must not be done ----------------------------------------------------------------------

std::string refusal(DistributedDataParallel<Net>& ddp, Fault fault = Fault::misuse) {
  std::string text;
  EXPECT_EQ(fault_of([&] { ddp(inputs(0)); }, &text), fault) << text;
  return text;
}

const Ranks written_past("written past", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto make = [&] {
    return DistributedDataParallel(std::make_shared<Net>(), world, {.share_parameters = true});
  };
  {
    auto ddp = make();
    const torch::NoGradGuard no_grad;
    ddp.module()->wide->weight.mul_(0.5);
    EXPECT_NE(refusal(ddp).find("wide.weight"), std::string::npos);
    ddp.edit_parameters([] {});  // Accepts the current values.
    ddp(inputs(0));
  }
  {
    auto ddp = make();
    SGD plain(ddp.module()->parameters(), SGDOptions(0.1));
    loss_of(ddp(inputs(0))).backward();
    plain.step();
    EXPECT_NE(refusal(ddp).find("SharedOptimizer"), std::string::npos);
  }
  {
    auto ddp = make();
    ddp.module()->to(torch::kDouble);
    EXPECT_NE(refusal(ddp).find("other memory"), std::string::npos);
  }
  {
    auto ddp = make();
    SharedOptimizer<SGD> sgd(ddp, ddp.module()->parameters(), SGDOptions(0.1));
    loss_of(ddp(inputs(0))).backward();
    torch::Tensor& bias = ddp.module()->out->bias;
    bias.set_data(bias.clone());
    refusal(ddp);
  }
  destroy_process_group(world);
});

TEST(SharedOptimizer, RefusesParametersThatWereWrittenPastIt) {
  EXPECT_TRUE(all_succeeded(written_past.run(2)));
}

struct Parts : torch::nn::Module {
  Parts() {
    const std::vector<torch::Tensor> parts = torch::ones({3, 8}).unbind();
    first = register_parameter("first", parts[0]);
    second = register_parameter("second", parts[1]);
    unused = register_parameter("unused", parts[2]);
  }
  torch::Tensor forward(const torch::Tensor& x) { return (x * first + second).sum(); }
  torch::Tensor first, second, unused;
};

const Ranks parts("parts of a tensor", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Parts>();
  DistributedDataParallel ddp(net, world,
                              {.find_unused_parameters = true, .share_parameters = true});
  SharedOptimizer<SGD> sgd(ddp, net->parameters(), SGDOptions(0.5));
  ddp.edit_parameters([&] { net->second.fill_(3); });
  for (int step = 0; step < 2; ++step) {
    ddp(torch::ones({8})).backward();
    sgd.step();
    sgd.zero_grad();
  }
  EXPECT_EQ(net->first.sum().item<float>(), 0);
  EXPECT_EQ(net->second.sum().item<float>(), 16);
  EXPECT_EQ(net->unused.sum().item<float>(), 8);
  world.barrier();
  const torch::NoGradGuard no_grad;
  net->second.zero_();
  std::string text;
  EXPECT_EQ(fault_of([&] { ddp(torch::ones({8})); }, &text), Fault::misuse);
  EXPECT_NE(text.find("parameter second"), text.npos) << text;
  destroy_process_group(world);
});

TEST(SharedOptimizer, StepsPartsOfOneTensor) { EXPECT_TRUE(all_succeeded(parts.run(2))); }

const Ranks edits("edits", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  for (const bool share : {true, false}) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, world, {.share_parameters = share});
    ddp.edit_parameters([&] {
      EXPECT_EQ(rank.rank, 0);
      const torch::NoGradGuard no_grad;
      net->out->bias.fill_(7);
      net->wide->bias.set_data(torch::full({371}, 9.0));
    });
    EXPECT_EQ(net->out->bias.sum().item<float>(), 49);
    EXPECT_EQ(net->wide->bias.sum().item<float>(), 9 * 371);
    ddp(inputs(0));
    std::string text;
    const auto fail = [&] {
      ddp.edit_parameters([&] {
        const torch::NoGradGuard no_grad;
        net->out->bias.fill_(1);
        throw std::runtime_error("no file");
      });
    };
    if (rank.rank == 0)
      EXPECT_THROW(fail(), std::runtime_error);
    else
      EXPECT_EQ(fault_of(fail, &text), Fault::aborted);
    EXPECT_EQ(text.find("no file") != std::string::npos, rank.rank != 0);
    EXPECT_EQ(net->out->bias.sum().item<float>(), 7);  // Equal on all ranks.
    ddp(inputs(0));
    const auto nested = [&] { ddp.edit_parameters([&] { ddp.edit_parameters([] {}); }); };
    EXPECT_EQ(fault_of(nested, &text), rank.rank == 0 ? Fault::misuse : Fault::aborted);
    EXPECT_NE(text.find("within each other"), text.npos) << text;
    ddp(inputs(0));
  }
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  const auto reshape = [&] {
    ddp.edit_parameters([&] { net->out->bias.set_data(torch::zeros({8})); });
  };
  EXPECT_EQ(fault_of(reshape), rank.rank == 0 ? Fault::misuse : Fault::aborted);
  ddp(inputs(0));
  destroy_process_group(world);
});

TEST(SharedOptimizer, EditsOfParametersAreMadeOnOneRank) {
  EXPECT_TRUE(all_succeeded(edits.run(3)));
}

struct Derived : SGD {
  using SGD::SGD;
};

const Ranks refusals("refusals", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Net>();
  const auto share = [&] {
    return DistributedDataParallel(net, world, {.share_parameters = true});
  };
  {
    DistributedDataParallel plain(net, world);
    EXPECT_EQ(fault_of([&] { SharedOptimizer<SGD>(plain, net->parameters(), SGDOptions(1)); }),
              Fault::misuse);
    EXPECT_EQ(fault_of(share), Fault::unsupported) << "another one has the parameters";
  }
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  const std::vector<torch::Tensor> others{torch::zeros({3})};
  EXPECT_EQ(fault_of([&] { SharedOptimizer<SGD>(ddp, others, SGDOptions(1)); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { ddp.register_comm_hook([](GradientBucket&) {}); }), Fault::unsupported);
  EXPECT_EQ(fault_of([&] { ddp.join([] {}); }), Fault::unsupported);
  EXPECT_EQ(fault_of([&] {
              DistributedDataParallel(net, world, {.overlap = true, .share_parameters = true});
            }),
            Fault::unsupported);
  EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, world); }), Fault::misuse);
  DeterministicDataParallel microbatches(std::make_shared<Net>(), world,
                                         {.microbatches = 4, .share_parameters = true});
  EXPECT_EQ(fault_of([&] {
              SharedOptimizer<LAMB>(microbatches, microbatches.module()->parameters(),
                                    LAMBOptions());
            }),
            Fault::unsupported);
  const auto tied = std::make_shared<Net>();
  tied->wide->bias.set_data(tied->wide->weight.flatten().slice(0, 0, 371));
  EXPECT_EQ(fault_of([&] { DistributedDataParallel(tied, world, {.share_parameters = true}); }),
            Fault::unsupported);
  destroy_process_group(world);
});

template <class Optimizer>
concept CanShare = requires { typename SharedOptimizer<Optimizer>; };

TEST(SharedOptimizer, DoesNotCompileWithAnOptimizerThatNeedsWholeParameters) {
  EXPECT_TRUE(CanShare<SGD>);
  EXPECT_TRUE(CanShare<LARS>);
  EXPECT_FALSE(CanShare<torch::optim::LBFGS>);
  EXPECT_FALSE(CanShare<Derived>);
}

TEST(SharedOptimizer, RejectsUnsupportedUse) { EXPECT_TRUE(all_succeeded(refusals.run(2))); }

// --- A rank that is lost ------------------------------------------------------------------------

}  // namespace

class LosesRank1 : public SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    if (++steps_ == 3 && std::getenv("RANK") == std::string("1")) std::raise(SIGKILL);
    return SGD::step(closure);
  }

 private:
  int steps_ = 0;
};

class ThrowsOnRank1 : public SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    if (std::getenv("RANK") == std::string("1")) throw std::runtime_error("no more");
    return SGD::step(closure);
  }
};

class ThrowsLate : public SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    SGD::step(closure);
    throw std::runtime_error("too late");
  }
};

}  // namespace lockstep::parallel::shared_optimizer_test

template <>
inline constexpr bool
    lockstep::is_elementwise<lockstep::parallel::shared_optimizer_test::LosesRank1> = true;
template <>
inline constexpr bool
    lockstep::is_elementwise<lockstep::parallel::shared_optimizer_test::ThrowsOnRank1> = true;
template <>
inline constexpr bool
    lockstep::is_elementwise<lockstep::parallel::shared_optimizer_test::ThrowsLate> = true;

namespace lockstep::parallel::shared_optimizer_test {
namespace {

const Ranks lost("lost", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  SharedOptimizer<LosesRank1> sgd(ddp, net->parameters(), SGDOptions(0.1));
  steps(ddp, sgd, 0, 2);
  EXPECT_FALSE(ddp.has_partially_updated_parameters());
  loss_of(ddp(inputs(0))).backward();
  std::string text;
  EXPECT_EQ(fault_of([&] { sgd.step(); }, &text), Fault::peer_lost) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_TRUE(ddp.has_partially_updated_parameters());
  EXPECT_NE(refusal(ddp, Fault::corrupt).find("checkpoint"), std::string::npos);
});

TEST(SharedOptimizer, ARankLostInAStepLeavesTornWeightsThatAreRejected) {
  const auto exits = lost.run(3);
  EXPECT_EQ(exits[1].signal, SIGKILL);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

const Ranks throwing("throwing", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  SharedOptimizer<ThrowsOnRank1> sgd(ddp, net->parameters(), SGDOptions(0.1));
  loss_of(ddp(inputs(0))).backward();
  if (rank.rank == 1) {
    EXPECT_THROW(sgd.step(), std::runtime_error);
  } else {
    std::string text;
    EXPECT_EQ(fault_of([&] { sgd.step(); }, &text), Fault::aborted);
    EXPECT_NE(text.find("no more"), std::string::npos) << text;
  }
  EXPECT_TRUE(ddp.has_partially_updated_parameters());
});

TEST(SharedOptimizer, AStepThatThrowsOnOneRankThrowsOnAll) {
  EXPECT_TRUE(all_succeeded(throwing.run(3)));
}

const Ranks late("late", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, world, {.share_parameters = true});
  SharedOptimizer<ThrowsLate> sgd(ddp, net->parameters(), SGDOptions(0.1));
  loss_of(ddp(inputs(0))).backward();
  EXPECT_ANY_THROW(sgd.step());
  EXPECT_TRUE(ddp.has_partially_updated_parameters());
});

TEST(SharedOptimizer, AnIncompleteStepOfAllRanksLeavesTornWeights) {
  EXPECT_TRUE(all_succeeded(late.run(1)));
  EXPECT_TRUE(all_succeeded(late.run(2)));
}

}  // namespace
}  // namespace lockstep::parallel::shared_optimizer_test
