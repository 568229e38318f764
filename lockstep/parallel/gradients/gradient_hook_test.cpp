// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_hook.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::gradient_hook_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

// One of two heads on an encoder.
struct Head : torch::nn::Module {
  Head(const torch::nn::Linear& shared, std::int64_t outputs)
      : encoder(register_module("encoder", shared)),
        head(register_module("head", torch::nn::Linear(4, outputs))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(encoder(x).tanh()); }

  torch::nn::Linear encoder;
  torch::nn::Linear head;
};

using Ddp = DistributedDataParallel<Head>;

struct Heads {
  torch::nn::Linear encoder;
  std::shared_ptr<Head> a = std::make_shared<Head>(encoder, 2);
  std::shared_ptr<Head> b = std::make_shared<Head>(encoder, 5);

  explicit Heads(std::int64_t inputs) : encoder(inputs, 4) {
    const torch::NoGradGuard no_grad;
    for (const auto& net : {a, b}) {
      net->to(torch::kDouble);
      for (auto& each : net->parameters())
        each.copy_(torch::arange(each.numel(), torch::kDouble).view(each.sizes()).sin());
    }
  }
  void zero_grad() const {
    a->zero_grad();
    b->zero_grad();
  }
};

constexpr std::int64_t few = 6;
// So large that gradients are averaged in place.
constexpr std::int64_t many = 12000;

torch::Tensor inputs(int rank, std::int64_t width) {
  return torch::arange(2 * width, torch::kDouble).view({2, width}).add(7 * rank).sin();
}

torch::Tensor loss_of(const torch::Tensor& output) { return output.pow(2).sum(); }

std::vector<torch::Tensor> means(int ranks, std::int64_t width) {
  const Heads nets(width);
  for (int rank = 0; rank < ranks; ++rank) {
    const torch::Tensor x = inputs(rank, width);
    ((loss_of(nets.a->forward(x)) * 3 + loss_of(nets.b->forward(x))) / ranks).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const auto& net : {nets.a, nets.b})
    for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_means(const Heads& nets, const std::vector<torch::Tensor>& expected) {
  std::size_t i = 0;
  for (const auto& net : {nets.a, nets.b})
    for (const auto& [name, parameter] : named_parameters(*net)) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_TRUE(torch::allclose(parameter.grad(), expected[i++], 1e-10)) << name;
    }
}

// Calls `pass` repeatedly on several ranks, with and without overlap.
void expect_means_after(const std::function<void(Ddp& a, Ddp& b, const torch::Tensor& x)>& pass) {
  for (const int ranks : {1, 2, 3})
    for (const std::int64_t width : {few, many}) {
      const auto expected = means(ranks, width);
      for (const bool overlap : {false, true})
        run_in_process(ranks, [&](ProcessGroup& world) {
          const Heads nets(width);
          Ddp a(nets.a, world, {.bucket_cap_mb = 0.0001, .overlap = overlap});
          Ddp b(nets.b, world, {.bucket_cap_mb = 0.0001, .overlap = overlap});
          for (int i = 0; i < 3; ++i) {
            nets.zero_grad();
            pass(a, b, inputs(world.rank(), width));
            expect_means(nets, expected);
          }
        });
    }
}

TEST(GradientsOfTwoModules, AreMeansInOneBackwardOverBothLosses) {
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    (loss_of(a(x)) * 3 + loss_of(b(x))).backward();
  });
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    const torch::Tensor of_b = loss_of(b(x));
    (loss_of(a(x)) * 3 + of_b).backward();
  });
}

TEST(GradientsOfTwoModules, AreMeansInOneBackwardAfterTheOther) {
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    (loss_of(a(x)) * 3).backward();
    loss_of(b(x)).backward();
  });
}

// PyTorch 2.13 refuses the first backward() in this case.
TEST(GradientsOfTwoModules, AreMeansInTwoBackwardsAfterBothForwards) {
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    const torch::Tensor of_a = loss_of(a(x)) * 3;
    const torch::Tensor of_b = loss_of(b(x));
    of_a.backward();
    of_b.backward();
  });
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    const torch::Tensor of_a = loss_of(a(x)) * 3;
    const torch::Tensor of_b = loss_of(b(x));
    of_b.backward();
    of_a.backward();
  });
}

TEST(GradientsOfTwoModules, AreMeansOfWhatAccumulatedUnderNoSync) {
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    {
      const auto alone_a = a.no_sync();
      const auto alone_b = b.no_sync();
      loss_of(a(x)).backward();
      (loss_of(a(x)) + loss_of(b(x)) / 2).backward();
    }
    (loss_of(a(x)) + loss_of(b(x)) / 2).backward();
  });
}

// b averages the encoder's gradient while a's bucket fills.
TEST(GradientsOfTwoModules, AccumulateWhenTheOtherAveragesTheNextPass) {
  expect_means_after([](Ddp& a, Ddp& b, const torch::Tensor& x) {
    loss_of(a(x)).backward();
    const torch::Tensor of_a = loss_of(a(x)) * 2;
    const torch::Tensor of_b = loss_of(b(x));
    (of_a + of_b).backward();
  });
}

TEST(GradientsOfOneModule, AreMeansWhenTwoWrappersAlternate) {
  const auto expected = means(2, few);
  run_in_process(2, [&](ProcessGroup& world) {
    const Heads nets(few);
    Ddp first(nets.a, world);
    Ddp b(nets.b, world);
    std::optional<Ddp> second(std::in_place, nets.a, world);
    const torch::Tensor x = inputs(world.rank(), few);
    for (Ddp* a : {&first, &*second, &first, &*second}) {
      nets.zero_grad();
      (loss_of((*a)(x)) * 3 + loss_of(b(x))).backward();
      expect_means(nets, expected);
    }
    second.reset();  // It was active.
    nets.zero_grad();
    (loss_of(nets.a->forward(x)) * 3 + loss_of(nets.b->forward(x))).backward();
    expect_means(nets, expected);
  });
}

TEST(GradientsOfTwoModules, AreDroppedInBothWhenOneIsNotFinite) {
  run_in_process(2, [](ProcessGroup& world) {
    const Heads nets(few);
    const Options skip{.non_finite = NonFinite::skip};
    Ddp a(nets.a, world, skip);
    Ddp b(nets.b, world, skip);
    torch::Tensor x = inputs(world.rank(), few);
    const float bad = world.rank() == 1 ? std::numeric_limits<float>::infinity() : 1;
    (loss_of(a(x)) * bad + loss_of(b(x))).backward();
    EXPECT_FALSE(nets.encoder->weight.grad().defined());
    EXPECT_FALSE(nets.a->head->weight.grad().defined());
    nets.zero_grad();
    (loss_of(a(x)) * 3 + loss_of(b(x))).backward();
    expect_means(nets, means(2, few));
  });
}

TEST(GradientsOfTwoModules, ThatAreMissingInOneAreStillNamed) {
  run_in_process(2, [](ProcessGroup& world) {
    const Heads nets(few);
    Ddp a(nets.a, world);
    Ddp b(nets.b, world);
    const torch::Tensor x = inputs(world.rank(), few);
    std::string text;
    const auto without_bias = [&] {
      b(x);
      const torch::Tensor y = a(x);
      nets.a->head->weight.sum().backward();
    };
    EXPECT_EQ(fault_of(without_bias, &text), Fault::misuse);
    EXPECT_NE(text.find("no gradient to encoder.weight, encoder.bias, head.bias"),
              std::string::npos)
        << text;
    const auto charged_on_one_rank = [&] {
      const torch::Tensor y = a(x);
      if (world.rank() == 0) b(x);
      loss_of(y).backward();
    };
    EXPECT_EQ(fault_of(charged_on_one_rank, &text), Fault::misuse);
    EXPECT_NE(text.find("on rank 0 backward() gave no gradient to encoder.weight, encoder.bias:"),
              std::string::npos)
        << text;
  });
}

TEST(GradientsOfTwoModules, AreRefusedWhereOnlyOneCanAverageThem) {
  torch::set_num_threads(1);
  run_in_process(2, [](ProcessGroup& world) {
    const auto refused = [&](const Options& first, const Options& second) {
      const Heads nets(few);
      const Ddp a(nets.a, world, first);
      std::string text;
      EXPECT_EQ(fault_of([&] { const Ddp b(nets.b, world, second); }, &text), Fault::unsupported);
      EXPECT_NE(text.find("encoder.weight"), std::string::npos) << text;
    };
    const Options over_samples{.mean = GradientMean::over_samples};
    refused(over_samples, {});
    refused({}, over_samples);
    refused({}, {.share_parameters = true});
    const Heads nets(few);
    {
      const DeterministicDataParallel first(nets.a, world, {.microbatches = 2});
      EXPECT_EQ(fault_of([&] { const Ddp b(nets.b, world); }), Fault::unsupported);
    }
    Ddp a(nets.a, world);
    EXPECT_EQ(fault_of([&] { DeterministicDataParallel(nets.b, world, {.microbatches = 2}); }),
              Fault::unsupported);
    ZeroRedundancyOptimizer<torch::optim::Adam> adam(nets.a->parameters(), world,
                                                     torch::optim::AdamOptions());
    {
      const Ddp b(nets.b, world);
      EXPECT_EQ(fault_of([&] { a.shard_gradients(adam); }), Fault::unsupported);
      EXPECT_EQ(fault_of([&] { a.join([] {}); }), Fault::unsupported);
    }
    a.shard_gradients(adam);
    EXPECT_EQ(fault_of([&] { const Ddp b(nets.b, world); }), Fault::unsupported);
  });
}

}  // namespace
}  // namespace lockstep::parallel::gradient_hook_test
