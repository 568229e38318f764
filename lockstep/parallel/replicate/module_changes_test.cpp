// The Lockstep column of the table "Changes after construction" in docs/guide/data-parallel.md.
// tests/python/module_changes_test.py checks that each row is named here.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::module_changes_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

constexpr int ranks = 2;

struct Net : torch::nn::Module {
  Net() {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.copy_(torch::arange(parameter.numel()).sin().view(parameter.sizes()) / 10);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return c->forward(b->forward(a->forward(x).tanh()).tanh());
  }

  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 300));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(300, 300));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(300, 2));
};

using Ddp = DistributedDataParallel<Net>;

torch::Tensor input(int rank, int step) {
  return (torch::arange(30).view({5, 6}) * (1 + rank + 3 * step)).cos();
}

torch::Tensor loss_of(Ddp& ddp, int step) {
  const torch::ScalarType type = ddp.module()->c->weight.scalar_type();
  return ddp(input(ddp.group().rank(), step).to(type)).pow(2).mean();
}

void train(Ddp& ddp, torch::optim::Optimizer& optimizer, int begin = 0, int end = 3,
           bool set_to_none = true) {
  for (int step = begin; step < end; ++step) {
    if (set_to_none) optimizer.zero_grad();
    for (const auto& parameter : ddp.module()->parameters())  // LibTorch's refuses views.
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    loss_of(ddp, step).backward();
    optimizer.step();
  }
}

torch::optim::SGD sgd(const torch::nn::Module& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.02));
}

// Without other ranks, each step with the mean of all ranks' losses.
NamedTensors trained_alone(int end, const std::function<void(Net&)>& change = {}) {
  const auto net = std::make_shared<Net>();
  auto optimizer = sgd(*net);
  for (int step = 0; step < end; ++step) {
    if (step == 1 && change) change(*net);
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (net->forward(input(rank, step)).pow(2).mean() / ranks).backward();
    optimizer.step();
  }
  return named_parameters(*net);
}

bool are_equal(const torch::nn::Module& net, const ProcessGroup& group) {
  for (const auto& [name, parameter] : named_parameters(net)) {
    const torch::Tensor all = all_gather(parameter.detach().contiguous(), group);
    if (!torch::equal(all[0], all[1])) return false;
  }
  return true;
}

void expect_equal(const torch::nn::Module& net, const NamedTensors& expected,
                  const ProcessGroup& group) {
  EXPECT_TRUE(are_equal(net, group)) << "the ranks' weights differ";
  const auto ours = named_parameters(net);
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i].second, expected[i].second, 1e-4, 1e-6)) << ours[i].first;
}

// With overlap and without, with gradients in their own tensors and as views.
void on_ranks(const std::function<void(ProcessGroup&, const Options&)>& body,
              Options options = {}) {
  for (const bool overlap : {false, true})
    for (const bool as_views : {false, true}) {
      options.overlap = overlap;
      options.gradient_as_bucket_view = as_views;
      run_in_process(ranks, [&](ProcessGroup& world) { body(world, options); });
    }
}

// --- Gradients ----------------------------------------------------------------------------------

// Row: `set_data()` on `.grad`
TEST(ModuleChanges, SetDataOnAGradientIsFollowed) {
  const NamedTensors expected = trained_alone(5);
  for (const bool set_to_none : {true, false})
    on_ranks([&](ProcessGroup& world, const Options& options) {
      const auto net = std::make_shared<Net>();
      Ddp ddp(net, world, options);
      auto optimizer = sgd(*net);
      for (int step = 0; step < 5; ++step) {
        train(ddp, optimizer, step, step + 1, set_to_none);
        for (const auto& parameter : net->parameters())
          parameter.mutable_grad().set_data(parameter.grad().clone());
      }
      expect_equal(*net, expected, world);
    });
}

// Row: a gradient is kept across `zero_grad()`
TEST(ModuleChanges, AGradientKeptAcrossZeroGradIsNotOverwritten) {
  on_ranks([](ProcessGroup& world, Options options) {
    options.gradient_as_bucket_view = false;
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    for (int step = 0; step < 3; ++step) {
      train(ddp, optimizer, step, step + 1);
      std::vector<torch::Tensor> kept, copies;
      for (const auto& parameter : net->parameters()) {
        kept.push_back(parameter.grad());
        copies.push_back(parameter.grad().clone());
      }
      train(ddp, optimizer, step + 1, step + 3);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(kept[i], copies[i]));
    }
  });
}

// Row: a graph has saved a gradient
TEST(ModuleChanges, AGradientThatAGraphHasSavedIsNotOverwritten) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 2);
    for (const auto& parameter : net->parameters()) {
      const torch::Tensor factor = torch::ones_like(parameter).detach().requires_grad_();
      const torch::Tensor before = parameter.grad().clone();
      const torch::Tensor saving = (factor * parameter.grad()).sum();
      const bool is_view = options.gradient_as_bucket_view && parameter.nbytes() < (256 << 10);
      train(ddp, optimizer, 2, 3);
      if (is_view) {
        EXPECT_THROW(saving.backward(), c10::Error);  // A limit of views; autograd reports it.
      } else {
        saving.backward();
        EXPECT_TRUE(torch::equal(factor.grad(), before));
      }
    }
  });
}

// Row: a pass adds to a gradient that a graph has saved
TEST(ModuleChanges, AutogradReportsASavedGradientToWhichAPassAdds) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 2);
    const torch::Tensor factor = torch::ones({300}, torch::requires_grad());
    const torch::Tensor saving = (factor * net->a->bias.grad()).sum();
    train(ddp, optimizer, 2, 3, /*set_to_none=*/false);
    EXPECT_THROW(saving.backward(), c10::Error);
  });
}

// Row: `.grad` is a tensor of the program
TEST(ModuleChanges, GradientsInMemoryOfTheProgramGetTheMeansThere) {
  on_ranks([](ProcessGroup& world, Options options) {
    options.gradient_as_bucket_view = false;
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    std::int64_t size = 0;
    for (const auto& parameter : net->parameters()) size += parameter.numel();
    const torch::Tensor flat = torch::zeros({size});
    std::int64_t begin = 0;
    for (const auto& parameter : net->parameters()) {
      parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view_as(parameter);
      begin += parameter.numel();
    }
    train(ddp, optimizer, 0, 3, /*set_to_none=*/false);
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().flatten());
    EXPECT_TRUE(torch::equal(flat, torch::cat(gradients)));
    const torch::Tensor all = all_gather(flat, world);
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    expect_equal(*net, trained_alone(3), world);
  });
}

// Not in the order of the parameter's elements.
TEST(ModuleChanges, AGradientOfAnotherMemoryFormatGetsTheMeanThere) {
  on_ranks([](ProcessGroup& world, Options options) {
    options.gradient_as_bucket_view = false;
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    std::vector<torch::Tensor> own;
    for (const auto& parameter : {net->a->weight, net->b->weight}) {
      own.push_back(torch::zeros(parameter.t().sizes()).t());
      parameter.mutable_grad() = own.back();
    }
    train(ddp, optimizer, 0, 3, /*set_to_none=*/false);
    EXPECT_TRUE(own[0].is_same(net->a->weight.grad()) && own[1].is_same(net->b->weight.grad()));
    expect_equal(*net, trained_alone(3), world);
  });
}

TEST(ModuleChanges, SharedParametersLeaveAKeptGradientAsItIs) {
  run_in_process(ranks, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, {.share_parameters = true});
    SharedOptimizer<torch::optim::SGD> optimizer(ddp, net->parameters(),
                                                 torch::optim::SGDOptions(0.02));
    loss_of(ddp, 0).backward();
    std::vector<torch::Tensor> kept, copies;
    for (const auto& parameter : net->parameters()) {
      kept.push_back(parameter.grad());
      copies.push_back(parameter.grad().clone());
    }
    optimizer.step();
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(kept[i], copies[i]));
  });
}

// --- Changes that are followed ------------------------------------------------------------------

void set_trained(torch::nn::Module& module, bool trained) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(trained);
}

// Row: parameters are frozen, and trained again
// Row: the same with `find_unused_parameters`
TEST(ModuleChanges, ParametersMayBeFrozenAndTrainedAgain) {
  NamedTensors expected;
  {
    const auto net = std::make_shared<Net>();
    auto optimizer = sgd(*net);
    for (int step = 0; step < 6; ++step) {
      set_trained(*net->b, step < 2 || step >= 4);
      optimizer.zero_grad();
      for (int rank = 0; rank < ranks; ++rank)
        (net->forward(input(rank, step)).pow(2).mean() / ranks).backward();
      optimizer.step();
    }
    expected = named_parameters(*net);
  }
  for (const bool find_unused : {false, true})
    on_ranks(
        [&](ProcessGroup& world, const Options& options) {
          const auto net = std::make_shared<Net>();
          Ddp ddp(net, world, options);
          auto optimizer = sgd(*net);
          train(ddp, optimizer, 0, 2);
          set_trained(*net->b, false);
          train(ddp, optimizer, 2, 4);
          set_trained(*net->b, true);
          train(ddp, optimizer, 4, 6);
          expect_equal(*net, expected, world);
        },
        {.find_unused_parameters = find_unused});
}

// Row: parameters are frozen on one rank, with `find_unused_parameters`
TEST(ModuleChanges, ParametersMayBeFrozenOnOneRank) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 1);
    if (world.rank() == 1) set_trained(*net->b, false);
    train(ddp, optimizer, 1, 4);
    EXPECT_TRUE(are_equal(*net, world));
  });
}

void transpose_memory(Net& net) {
  for (auto& parameter : {net.a->weight, net.b->weight})
    parameter.set_data(parameter.detach().t().contiguous().t());
}

// Row: another memory format
// Row: another memory format on one rank
TEST(ModuleChanges, AMemoryFormatMayChangeOnAllRanksOrOne) {
  const NamedTensors expected = trained_alone(4, transpose_memory);
  for (const int first : {0, 1})
    on_ranks([&](ProcessGroup& world, const Options& options) {
      const auto net = std::make_shared<Net>();
      Ddp ddp(net, world, options);
      auto optimizer = sgd(*net);
      train(ddp, optimizer, 0, 1);
      if (world.rank() >= first) transpose_memory(*net);
      train(ddp, optimizer, 1, 4);
      expect_equal(*net, expected, world);
    });
}

void load(Net& net, bool into_other_storage) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) {
    const torch::Tensor values = torch::arange(parameter.numel()).cos().view_as(parameter) / 10;
    into_other_storage ? parameter.set_data(values) : static_cast<void>(parameter.copy_(values));
  }
}

// Row: weights are loaded on all ranks
TEST(ModuleChanges, WeightsMayBeLoadedOnAllRanks) {
  for (const bool elsewhere : {false, true}) {
    const auto change = [elsewhere](Net& net) { load(net, elsewhere); };
    const NamedTensors expected = trained_alone(4, change);
    on_ranks([&](ProcessGroup& world, const Options& options) {
      const auto net = std::make_shared<Net>();
      Ddp ddp(net, world, options);
      auto optimizer = sgd(*net);
      train(ddp, optimizer, 0, 1);
      change(*net);
      train(ddp, optimizer, 1, 4);
      expect_equal(*net, expected, world);
    });
  }
}

// Row: weights are changed within `edit_parameters()`
TEST(ModuleChanges, WeightsMayBeLoadedOnRankZeroInEditParameters) {
  const NamedTensors expected = trained_alone(4, [](Net& net) { load(net, false); });
  on_ranks([&](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 1);
    ddp.edit_parameters([&] { load(*net, world.rank() == 0); });
    train(ddp, optimizer, 1, 4);
    expect_equal(*net, expected, world);
  });
}

// Row: another optimizer
TEST(ModuleChanges, AnotherOptimizerMayFollow) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto first = sgd(*net);
    train(ddp, first, 0, 2);
    torch::optim::Adam second(net->parameters(), torch::optim::AdamOptions(1e-2));
    train(ddp, second, 2, 4);
    EXPECT_TRUE(are_equal(*net, world));
  });
}

// Only rank 0 exchanges its replica's weights, and restores them.
// Row: weights are exchanged on one rank, and put back
TEST(ModuleChanges, WeightsMayBeExchangedOnOneRankAndPutBack) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 2);
    if (world.rank() == 0) {
      const torch::NoGradGuard no_grad;
      const torch::Tensor own = net->a->weight.clone();
      net->a->weight.zero_();
      net->forward(input(0, 0));
      net->a->weight.copy_(own);
    }
    train(ddp, optimizer, 2, 4);
    expect_equal(*net, trained_alone(4), world);
  });
}

// As in sharpness-aware minimisation with a perturbation for each rank.
// Row: ranks perturb their weights for a pass
TEST(ModuleChanges, RanksMayPerturbTheirWeightsForAPass) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const torch::Tensor before = net->b->weight.detach().clone();
      {
        const torch::NoGradGuard no_grad;
        net->b->weight.add_(0.01 * (1 + world.rank()));
      }
      loss_of(ddp, step).backward();
      {
        const torch::NoGradGuard no_grad;
        net->b->weight.copy_(before);
      }
      optimizer.step();
    }
    EXPECT_TRUE(are_equal(*net, world));
  });
}

// --- Changes that are an Error ------------------------------------------------------------------

// Changes the module on all ranks or only on rank 1. All ranks' next backward() throws.
void expect_refused(const std::function<void(Net&)>& change, const std::string& expected,
                    Options given = {}, const std::function<void(Net&)>& prepare = {}) {
  for (const int first : {0, 1})
    on_ranks(
        [&](ProcessGroup& world, const Options& options) {
          const auto net = std::make_shared<Net>();
          if (prepare) prepare(*net);
          Ddp ddp(net, world, options);
          auto optimizer = sgd(*net);
          train(ddp, optimizer, 0, 2);
          if (world.rank() >= first) change(*net);
          const torch::Tensor loss = loss_of(ddp, 2);
          std::string text;
          EXPECT_EQ(fault_of([&] { loss.backward(); }, &text), Fault::misuse) << text;
          EXPECT_NE(text.find("on rank " + std::to_string(first) + " parameter " + expected),
                    text.npos)
              << text;
          EXPECT_FALSE(net->a->weight.grad().defined());
        },
        given);
}

// Row: a frozen parameter is trained later
TEST(ModuleChanges, AParameterThatRequiresAGradientLaterIsNamed) {
  const auto freeze = [](Net& net) { set_trained(*net.b, false); };
  const auto unfreeze = [](Net& net) { set_trained(*net.b, true); };
  const std::string expected =
      "b.weight requires a gradient since DistributedDataParallel was made";
  expect_refused(unfreeze, expected, {}, freeze);
  expect_refused(unfreeze, expected, {.find_unused_parameters = true}, freeze);
  expect_refused(unfreeze, expected, {.static_graph = true}, freeze);
}

// No gradient arrives for a known parameter.
TEST(ModuleChanges, ParametersThatAreTrainedInsteadOfOthersAreNamed) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    set_trained(*net->a, false);
    set_trained(*net->b, false);
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 2);
    set_trained(*net->b, true);
    set_trained(*net->c, false);
    std::string text;
    EXPECT_EQ(fault_of([&] { loss_of(ddp, 2).backward(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("parameter b.weight requires a gradient since"), text.npos) << text;
  });
}

TEST(ModuleChanges, ARefusedChangeMayBeUndone) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    set_trained(*net->b, false);
    Ddp ddp(net, world, options);
    auto optimizer = sgd(*net);
    train(ddp, optimizer, 0, 2);
    set_trained(*net->b, true);
    EXPECT_EQ(fault_of([&] { loss_of(ddp, 2).backward(); }), Fault::misuse);
    set_trained(*net->b, false);
    train(ddp, optimizer, 2, 4);
    EXPECT_TRUE(are_equal(*net, world));
  });
}

TEST(ModuleChanges, AnotherDistributedDataParallelAveragesWhatWasUnfrozen) {
  on_ranks([](ProcessGroup& world, const Options& options) {
    const auto net = std::make_shared<Net>();
    set_trained(*net->b, false);
    auto ddp = std::make_unique<Ddp>(net, world, options);
    auto optimizer = sgd(*net);
    train(*ddp, optimizer, 0, 2);
    set_trained(*net->b, true);
    ddp = std::make_unique<Ddp>(net, world, options);
    const torch::Tensor before = net->b->weight.detach().clone();
    train(*ddp, optimizer, 2, 4);
    EXPECT_FALSE(torch::equal(net->b->weight, before));
    EXPECT_TRUE(are_equal(*net, world));
  });
}

// Row: a parameter is added
TEST(ModuleChanges, AParameterThatIsAddedIsNamed) {
  expect_refused([](Net& net) { net.register_module("d", torch::nn::Linear(2, 2)); },
                 "d.weight was added");
  expect_refused(
      [](Net& net) { net.register_parameter("scale", torch::ones(2), /*requires_grad=*/false); },
      "scale was added");
}

// Trains the layer `d` instead of all others.
struct Growing : Net {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor out = Net::forward(x);
    return d.is_empty() ? out : d->forward(out);
  }
  void freeze() { set_trained(*this, false); }
  void grow() { d = register_module("d", torch::nn::Linear(2, 2)); }

  torch::nn::Linear d = nullptr;
};

using GrowingDdp = DistributedDataParallel<Growing>;

torch::Tensor loss_of(GrowingDdp& ddp, const torch::Tensor& x) { return ddp(x).pow(2).mean(); }

// After a mismatch, the orderly end of the group fails.
void on_growing_ranks(const std::function<void(ProcessGroup&, Growing&, GrowingDdp&)>& body) {
  for (const bool overlap : {false, true}) {
    const auto begin = Clock::now();
    try {
      run_in_process(ranks, [&](ProcessGroup& world) {
        const auto net = std::make_shared<Growing>();
        net->register_buffer("count", torch::zeros(1));
        GrowingDdp ddp(net, world, {.overlap = overlap});
        for (int step = 0; step < 2; ++step) loss_of(ddp, input(world.rank(), step)).backward();
        body(world, *net, ddp);
      });
    } catch (const Error& error) {
      EXPECT_TRUE(error.fault() == Fault::mismatch || error.fault() == Fault::aborted)
          << error.what();
    }
    EXPECT_LT(seconds_since(begin), 30.0) << "a rank has waited until its timeout";
  }
}

TEST(ModuleChanges, AParameterThatIsTrainedInsteadOfAllOthersIsNamed) {
  on_growing_ranks([](ProcessGroup& world, Growing& net, GrowingDdp& ddp) {
    net.freeze();
    net.grow();
    std::string text;
    const auto pass = [&] { loss_of(ddp, input(world.rank(), 2)).backward(); };
    EXPECT_EQ(fault_of(pass, &text), Fault::misuse);
    EXPECT_NE(text.find("on rank 0 parameter d.weight was added"), text.npos) << text;
    world.barrier();
  });
}

TEST(ModuleChanges, AParameterThatOneRankTrainsInsteadOfAllOthersIsNamedOnAllRanks) {
  on_growing_ranks([](ProcessGroup& world, Growing& net, GrowingDdp& ddp) {
    if (world.rank() == 1) {
      net.freeze();
      net.grow();
    }
    std::string text;
    const auto pass = [&] { loss_of(ddp, input(world.rank(), 2)).backward(); };
    EXPECT_EQ(fault_of(pass, &text), Fault::mismatch);
    EXPECT_NE(text.find("changed module: parameter d.weight was added"), text.npos) << text;
  });
}

TEST(ModuleChanges, AParameterThatOneRankTrainsWhereOthersTrainNoneIsNamedOnAllRanks) {
  on_growing_ranks([](ProcessGroup& world, Growing& net, GrowingDdp& ddp) {
    net.freeze();
    if (world.rank() == 1) net.grow();
    std::string text;
    const auto pass = [&] {
      loss_of(ddp, input(world.rank(), 2).requires_grad_()).backward();
      world.barrier();
    };
    EXPECT_EQ(fault_of(pass, &text), Fault::mismatch);
    EXPECT_NE(text.find("changed module: parameter d.weight was added"), text.npos) << text;
  });
}

TEST(ModuleChanges, AGradientPenaltyOfAChangedModuleWaitsForNobody) {
  on_growing_ranks([](ProcessGroup& world, Growing& net, GrowingDdp& ddp) {
    if (world.rank() == 1) net.grow();
    const torch::Tensor x = input(world.rank(), 2).requires_grad_();
    const torch::Tensor slope = torch::autograd::grad({loss_of(ddp, x)}, {x})[0];
    EXPECT_TRUE(slope.defined());
    std::string text;
    EXPECT_EQ(fault_of([&] { loss_of(ddp, x).backward(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("on rank 1 parameter d.weight was added"), text.npos) << text;
  });
}

// Row: a parameter is removed
TEST(ModuleChanges, AParameterThatIsRemovedIsNamed) {
  expect_refused([](Net& net) { net.unregister_module("b"); }, "b.weight was removed",
                 {.find_unused_parameters = true});
}

// Row: a parameter is registered again
// Row: a parameter is registered again, with `find_unused_parameters`
TEST(ModuleChanges, AParameterThatIsRegisteredAgainIsNamed) {
  const auto replace = [](Net& net) {
    net.b = net.replace_module("b", torch::nn::Linear(300, 300));
  };
  expect_refused(replace, "b.weight was replaced by another tensor");
  expect_refused(replace, "b.weight was replaced by another tensor",
                 {.find_unused_parameters = true});
}

struct Pair : torch::nn::Module {
  Pair() {
    first->register_parameter("w", torch::ones({4, 4}));
    second->register_parameter("w", torch::ones({4, 4}) * 2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x.matmul(first->parameters()[0]).matmul(second->parameters()[0]);
  }

  std::shared_ptr<Module> first = register_module("first", std::make_shared<Module>());
  std::shared_ptr<Module> second = register_module("second", std::make_shared<Module>());
};

// Row: two parameters are tied
// Row: tied parameters are separated
TEST(ModuleChanges, AParameterThatIsTiedOrUntiedIsNamed) {
  for (const bool tied : {false, true})
    on_ranks([tied](ProcessGroup& world, const Options& options) {
      const auto net = std::make_shared<Pair>();
      const auto single = net->second;
      const auto tie = [&] { net->second = net->replace_module("second", net->first); };
      if (tied) tie();
      DistributedDataParallel ddp(net, world, options);
      const auto pass = [&] { ddp(torch::ones({4, 4})).sum().backward(); };
      pass();
      tied ? static_cast<void>(net->second = net->replace_module("second", single)) : tie();
      std::string text;
      EXPECT_EQ(fault_of(pass, &text), Fault::misuse);
      EXPECT_NE(text.find(tied ? "parameter second.w was replaced by another tensor after"
                               : "parameter second.w was tied to first.w after"),
                text.npos)
          << text;
    });
}

// Row: another type, such as `to(kDouble)`
TEST(ModuleChanges, AnotherTypeIsNamed) {
  expect_refused([](Net& net) { net.to(torch::kDouble); },
                 "a.weight was changed from Float to Double after");
}

// Row: another shape
TEST(ModuleChanges, AnotherShapeIsNamed) {
  const auto grow = [](Net& net) {
    net.c->weight.set_data(torch::zeros({3, 300}));
    net.c->bias.set_data(torch::zeros({3}));
  };
  expect_refused(grow, "c.weight was changed from shape [2, 300] to [3, 300] after");
}

// --- Ranks that write at different places -------------------------------------------------------

// Row: weights are loaded in place on one rank
// Row: weights get other storage on one rank, as by `torch::load()`
TEST(ModuleChanges, WeightsLoadedOnOneRankAreAMismatch) {
  for (const bool elsewhere : {false, true})
    on_ranks([elsewhere](ProcessGroup& world, const Options& options) {
      const auto net = std::make_shared<Net>();
      Ddp ddp(net, world, options);
      auto optimizer = sgd(*net);
      train(ddp, optimizer, 0, 1);
      if (world.rank() == 1) load(*net, elsewhere);
      std::string text;
      EXPECT_EQ(fault_of([&] { loss_of(ddp, 1).backward(); }, &text), Fault::mismatch);
      EXPECT_NE(text.find("backward pass 2: rank 0 and rank 1 have different weights. Since the "
                          "last pass, rank 0 has made 0 writes to its parameters and rank 1 6:"),
                text.npos)
          << text;
    });
}

// Each rank steps only the parameters whose gradients it has.
// Row: another optimizer than that of `shard_gradients()`
TEST(ModuleChanges, AnotherOptimizerThanThatOfShardedGradientsIsAMismatch) {
  run_in_process(ranks, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world);
    ZeroRedundancyOptimizer<torch::optim::SGD> zero(net->parameters(), world,
                                                    torch::optim::SGDOptions(0.02));
    ddp.shard_gradients(zero);
    train(ddp, zero, 0, 3);
    EXPECT_TRUE(are_equal(*net, world));
    auto other = sgd(*net);
    train(ddp, other, 3, 4);
    other.zero_grad();
    std::string text;
    EXPECT_EQ(fault_of([&] { loss_of(ddp, 4).backward(); }, &text), Fault::mismatch);
    EXPECT_NE(text.find("have different weights"), text.npos) << text;
  });
}

void expect_mismatch_with(const std::function<void(ProcessGroup&, Ddp&)>& call,
                          const std::string& name) {
  for (const bool overlap : {false, true}) {
    const auto body = [&](ProcessGroup& world) {
      const auto net = std::make_shared<Net>();
      net->register_buffer("count", torch::zeros(1));
      Ddp ddp(net, world, {.overlap = overlap});
      auto optimizer = sgd(*net);
      train(ddp, optimizer, 0, 2);
      const torch::Tensor loss = loss_of(ddp, 2);
      std::string text;
      const auto pass = [&] { world.rank() == 0 ? loss.backward() : call(world, ddp); };
      EXPECT_EQ(fault_of(pass, &text), Fault::mismatch);
      EXPECT_NE(text.find("rank 1 called " + name), text.npos) << text;
      EXPECT_NE(text.find("rank 0 called "), text.npos) << text;
    };
    try {
      run_in_process(ranks, body);
    } catch (const Error& error) {  // The group is broken: ending it fails as well.
      EXPECT_TRUE(error.fault() == Fault::mismatch || error.fault() == Fault::aborted)
          << error.what();
    }
  }
}

TEST(ModuleChanges, ARankThatMakesAnotherCallDuringBackwardIsNamedAtOnce) {
  expect_mismatch_with([](ProcessGroup& world, Ddp&) { world.barrier({.label = "mine"}); },
                       "barrier");
  expect_mismatch_with(
      [](ProcessGroup& world, Ddp&) { all_reduce(torch::ones(3), world, ReduceOp::sum); },
      "all_reduce");
  expect_mismatch_with([](ProcessGroup&, Ddp& ddp) { loss_of(ddp, 3); }, "broadcast");
}

// --- LBFGS --------------------------------------------------------------------------------------

torch::optim::LBFGSOptions lbfgs_options(bool searches) {
  torch::optim::LBFGSOptions options(searches ? 1.0 : 0.1);
  options.max_iter(8).history_size(5).tolerance_change(1e-5);
  if (searches) options.line_search_fn("strong_wolfe");
  return options;
}

// Ranks have very different targets.
torch::Tensor far_loss(const torch::Tensor& out, int rank) {
  return (out - 30 * rank).pow(2).mean() + 10 * rank;
}

std::shared_ptr<Net> in_double() {
  auto net = std::make_shared<Net>();
  net->to(torch::kDouble);
  return net;
}

torch::Tensor input_in_double(int rank) { return input(rank, 0).to(torch::kDouble); }

// Row: LBFGS with the mean of the losses
TEST(ModuleChanges, LbfgsTakesTheSameStepsWithAnAveragedLoss) {
  for (const bool searches : {false, true}) {
    const auto alone = in_double();
    torch::optim::LBFGS whole(alone->parameters(), lbfgs_options(searches));
    int expected_calls = 0;
    for (int step = 0; step < 3; ++step)
      whole.step([&] {
        ++expected_calls;
        whole.zero_grad();
        torch::Tensor sum = torch::zeros({}, torch::kDouble);
        for (int rank = 0; rank < ranks; ++rank)
          sum = sum + far_loss(alone->forward(input_in_double(rank)), rank) / ranks;
        sum.backward();
        return sum;
      });
    on_ranks([&](ProcessGroup& world, const Options& options) {
      const auto net = in_double();
      Ddp ddp(net, world, options);
      torch::optim::LBFGS lbfgs(net->parameters(), lbfgs_options(searches));
      int calls = 0;
      for (int step = 0; step < 3; ++step)
        lbfgs.step(average_loss(ddp, [&] {
          ++calls;
          lbfgs.zero_grad();
          const torch::Tensor loss = far_loss(ddp(input_in_double(world.rank())), world.rank());
          loss.backward();
          return loss;
        }));
      EXPECT_EQ(calls, expected_calls);
      EXPECT_TRUE(are_equal(*net, world));
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-6, 1e-8));
    });
  }
}

// Row: LBFGS with each rank's loss
TEST(ModuleChanges, LbfgsWithALossOfEachRankIsAMismatch) {
  for (const bool searches : {false, true})
    on_ranks([&](ProcessGroup& world, const Options& options) {
      const auto net = in_double();
      Ddp ddp(net, world, options);
      torch::optim::LBFGS lbfgs(net->parameters(), lbfgs_options(searches));
      std::vector<int> passes(1);
      std::string text;
      const auto train_all = [&] {
        for (int step = 0; step < 100; ++step, passes.push_back(0))
          lbfgs.step([&] {
            lbfgs.zero_grad();
            const torch::Tensor loss = far_loss(ddp(input_in_double(world.rank())), world.rank());
            ++passes.back();
            loss.backward();
            return loss;
          });
      };
      EXPECT_EQ(fault_of(train_all, &text), Fault::mismatch);
      EXPECT_NE(text.find("rank 0 and rank 1 have different weights"), text.npos) << text;
      EXPECT_NE(text.find("average_loss()"), text.npos) << text;
      // Steps that both ranks completed had equal numbers of passes.
      const torch::Tensor ended = torch::tensor(static_cast<std::int64_t>(passes.size()));
      const torch::Tensor all = all_gather(ended, world);
      EXPECT_LE((all[0] - all[1]).abs().item<std::int64_t>(), 1);
    });
}

TEST(ModuleChanges, AnAveragedLossIsAMeanOverSamples) {
  run_in_process(ranks, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    Ddp ddp(net, world, {.mean = GradientMean::over_samples});
    const auto closure = average_loss(ddp, [&] {
      net->zero_grad();
      ddp.count_samples(1 + 2 * world.rank());
      const torch::Tensor loss = ddp(input(0, 0)).sum() * 0 + 3 + world.rank();
      loss.backward();
      return loss;
    });
    const torch::Tensor mean = closure();
    EXPECT_EQ(mean.scalar_type(), torch::kFloat);
    EXPECT_FLOAT_EQ(mean.item<float>(), 7.0F / 4);
    EXPECT_EQ(fault_of([&] { average_loss(ddp, {}); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { average_loss(ddp, [] { return torch::ones(2); })(); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { average_loss(ddp, [] { return torch::ones(1); })(); }), Fault::misuse);
  });
}

}  // namespace
}  // namespace lockstep::parallel::module_changes_test
