// Tests that gradients of complex parameters are averaged as pairs of reals.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/observe/memory_report.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::observe::complex_parameters_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

// Its values depend on `factor`.
struct Net : torch::nn::Module {
  explicit Net(double factor = 1) {
    const auto made = [&](at::IntArrayRef sizes) {
      torch::Tensor tensor = torch::empty(sizes, torch::kComplexDouble);
      torch::Tensor reals = torch::view_as_real(tensor);
      reals.copy_(torch::arange(reals.numel()).sin().mul(factor).view(reals.sizes()));
      return tensor;
    };
    small = register_parameter("small", made({4, 3}));
    large = register_parameter("large", made({3, 6000}));  // Averaged in place.
    real = register_parameter("real", torch::view_as_real(made({3})).clone());
    phase = register_buffer("phase", made({6000}));
  }
  // The gradient of `small` is a lazy conjugate.
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = x.matmul(small.conj()) * torch::view_as_complex(real);
    return torch::view_as_real(hidden.matmul(large) * phase);
  }

  torch::Tensor small, large, real, phase;
};

using Ddp = DistributedDataParallel<Net>;

torch::Tensor inputs(int rank) {
  const auto reals = torch::arange(16, torch::kDouble).add(5 * rank).cos();
  return torch::view_as_complex(reals.view({2, 4, 2}));
}

torch::Tensor loss_of(const torch::Tensor& output) { return output.pow(2).mean(); }

// The gradients of the mean of all ranks' losses.
std::vector<torch::Tensor> means(int ranks) {
  Net net;
  for (int rank = 0; rank < ranks; ++rank) (loss_of(net.forward(inputs(rank))) / ranks).backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_close(const std::vector<torch::Tensor>& actual,
                  const std::vector<torch::Tensor>& expected, double tolerance = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], tolerance, tolerance)) << i;
}

std::vector<torch::Tensor> gradients_of(const Net& net) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

// The parameters after a step of SGD along `gradients`.
std::vector<torch::Tensor> stepped(const std::vector<torch::Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  Net net;
  std::vector<torch::Tensor> parameters = net.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(gradients[i], 0.5);
  return parameters;
}

TEST(ComplexParameters, HaveTheMeanOfTheirGradients) {
  for (const int ranks : {1, 2, 3})
    for (const bool overlap : {false, true})
      run_in_process(ranks, [&](ProcessGroup& world) {
        auto net = std::make_shared<Net>(1 + world.rank());
        Ddp ddp(net, world, {.bucket_cap_mb = 0.0001, .overlap = overlap});
        EXPECT_TRUE(torch::equal(net->phase, Net().phase)) << "rank 0's";
        for (int step = 0; step < 3; ++step) {
          if (step != 1) net->zero_grad(/*set_to_none=*/step == 0);
          auto expected = means(ranks);
          if (step == 1)
            for (auto& each : expected) each = each * 2;
          loss_of(ddp(inputs(world.rank()))).backward();
          expect_close(gradients_of(*net), expected);
        }
      });
}

TEST(ComplexParameters, LieInBucketsAsPairsOfReals) {
  run_in_process(2, [](ProcessGroup& world) {
    auto net = std::make_shared<Net>();
    Ddp ddp(net, world);
    EXPECT_EQ(ddp.stats().buckets, (BucketAssignment{{2}, {0, 1}}));
    bool is_seen = false;
    ddp.register_comm_hook([&](GradientBucket& bucket) {
      EXPECT_EQ(bucket.buffer.scalar_type(), torch::kDouble);
      all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
      for (const auto& [name, gradient] : bucket.gradients) {
        EXPECT_EQ(gradient.is_complex(), name != "real");
        is_seen = is_seen || name == "large";
      }
    });
    loss_of(ddp(inputs(world.rank()))).backward();
    EXPECT_TRUE(is_seen);
    expect_close(gradients_of(*net), means(2));
  });
}

TEST(ComplexParameters, TravelCompressed) {
  for (const auto& hook : {fp16_compress_hook, bf16_compress_hook})
    run_in_process(2, [&](ProcessGroup& world) {
      auto net = std::make_shared<Net>();
      Ddp ddp(net, world);
      ddp.register_comm_hook(hook());
      loss_of(ddp(inputs(world.rank()))).backward();
      expect_close(gradients_of(*net), means(2), 3e-2);
    });
}

TEST(ComplexParameters, AreStepped) {
  using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;
  const torch::optim::SGDOptions sgd_options(0.5);
  for (const int ranks : {1, 2, 3}) {
    const auto expected = stepped(means(ranks));
    const auto expect_after = [&](const Options& options, auto make) {
      run_in_process(ranks, [&](ProcessGroup& world) {
        auto net = std::make_shared<Net>(1 + world.rank());
        Ddp ddp(net, world, options);
        const auto optimizer = make(ddp, world);
        loss_of(ddp(inputs(world.rank()))).backward();
        optimizer->step();
        expect_close(net->parameters(), expected);
        const MemoryReport report = memory_report(ddp, *optimizer);
        EXPECT_EQ(report.measured.ranks[0].parameters, report.predicted.ranks[0].parameters);
      });
    };
    expect_after({.share_parameters = true}, [&](Ddp& ddp, ProcessGroup&) {
      return std::make_unique<SharedOptimizer<torch::optim::SGD>>(ddp, ddp.module()->parameters(),
                                                                  sgd_options);
    });
    for (const bool sharded : {false, true})
      expect_after({}, [&](Ddp& ddp, ProcessGroup& world) {
        auto zero = std::make_unique<Zero>(ddp.module()->parameters(), world, sgd_options);
        if (sharded) ddp.shard_gradients(*zero);
        return zero;
      });
  }
}

TEST(ComplexParameters, HaveTheSameGradientsOnEveryNumberOfRanks) {
  torch::set_num_threads(1);
  std::vector<torch::Tensor> first;
  for (const int ranks : {1, 2, 4}) {
    run_in_process(ranks, [&](ProcessGroup& world) {
      auto net = std::make_shared<Net>();
      DeterministicDataParallel ddp(net, world, {.microbatches = 4});
      ddp.train_microbatches(0, [&](const GlobalMicrobatch& microbatch) {
        return loss_of(ddp(inputs(microbatch.index)));
      });
      expect_close(gradients_of(*net), means(4));
      if (world.rank() > 0) return;
      if (first.empty())
        for (const auto& each : gradients_of(*net)) first.push_back(each.clone());
      for (std::size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(torch::equal(gradients_of(*net)[i], first[i])) << ranks << " ranks, " << i;
    });
  }
}

TEST(ComplexParameters, AreNamedWhenAGradientIsNotFinite) {
  for (const char* name : {"small", "large"})
    for (const int ranks : {1, 2})
      run_in_process(ranks, [&](ProcessGroup& world) {
        auto net = std::make_shared<Net>();
        Ddp ddp(net, world);
        net->named_parameters()[name].register_hook([](const torch::Tensor& gradient) {
          torch::Tensor changed = gradient.resolve_conj().clone();
          torch::view_as_real(changed)[1][2][1] = std::numeric_limits<double>::infinity();
          return changed;
        });
        std::string text;
        EXPECT_EQ(fault_of([&] { loss_of(ddp(inputs(world.rank()))).backward(); }, &text),
                  Fault::corrupt);
        EXPECT_NE(text.find(std::string("the gradient of ") + name), std::string::npos) << text;
      });
}

TEST(ComplexParameters, AreCopiedAndAddedThoughLazyConjugatesOrNegatives) {
  const torch::Tensor numbers = Net().small.detach();
  const torch::Tensor conjugate = numbers.conj();
  torch::Tensor to = torch::empty_like(numbers);
  EXPECT_TRUE(parallel::scaled_copy(to, conjugate, 0.5));
  EXPECT_TRUE(torch::equal(to, conjugate.resolve_conj() * 0.5));
  EXPECT_TRUE(parallel::checked_add(to, conjugate));
  EXPECT_TRUE(torch::equal(to, conjugate.resolve_conj() * 1.5));
  const torch::Tensor negative = at::_neg_view(torch::ones({3}));
  torch::Tensor reals = torch::empty({3});
  EXPECT_TRUE(parallel::scaled_copy(reals, negative, 2));
  EXPECT_TRUE(torch::equal(reals, torch::full({3}, -2.0F)));
}

}  // namespace
}  // namespace lockstep::observe::complex_parameters_test
