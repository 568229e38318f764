// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/join.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::join_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

// Fixed weights: threads share the generator.
torch::nn::Linear linear() {
  torch::nn::Linear net(6, 3);
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& weights : net->parameters())
    weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin());
  return net;
}

torch::Tensor inputs(std::int64_t from, std::int64_t to) {
  return torch::sin(torch::arange(from * 6, to * 6, torch::kDouble)).view({to - from, 6});
}

torch::Tensor loss_of(const torch::Tensor& out) { return out.pow(2).sum(); }

torch::optim::SGD sgd_of(const torch::nn::Linear& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
}

void expect_equal(const torch::nn::Linear& a, const torch::nn::Linear& b) {
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_LE((a->parameters()[i] - b->parameters()[i]).abs().max().item<double>(), 1e-12);
}

// --- Means over samples -------------------------------------------------------------------------

std::int64_t samples_of(int pass, int rank) { return (pass * 7 + rank * 5) % 6; }

TEST(GradientMean, OverSamplesEqualsOneProcessOnTheirUnionAlsoWhenAccumulating) {
  for (const int ranks : {1, 2, 3})
    for (const bool overlap : {false, true})
      run_in_process(ranks, [&](ProcessGroup& world) {
        auto net = linear();
        auto whole = linear();
        auto sgd = sgd_of(net);
        auto whole_sgd = sgd_of(whole);
        const Options options{.overlap = overlap, .mean = GradientMean::over_samples};
        DistributedDataParallel ddp(net, world, options);
        for (int step = 0; step < 20; ++step) {
          sgd.zero_grad();
          whole_sgd.zero_grad();
          std::int64_t total = 0;
          for (int part = 0; part < 3; ++part) {
            const auto no_sync = ddp.no_sync(part < 2);
            const int pass = 3 * step + part;
            const std::int64_t mine = samples_of(pass, world.rank());
            ddp.count_samples(static_cast<double>(mine));
            loss_of(ddp(inputs(100 * pass, 100 * pass + mine))).backward();
            for (int rank = 0; rank < ranks; ++rank) {
              const std::int64_t theirs = samples_of(pass, rank);
              total += theirs;
              loss_of(whole(inputs(100 * pass, 100 * pass + theirs))).backward();
            }
          }
          for (auto& parameter : whole->parameters()) parameter.mutable_grad().div_(total);
          sgd.step();
          whole_sgd.step();
        }
        expect_equal(net, whole);
      });
}

TEST(GradientMean, OverNoSamplesIsMisuse) {
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world, {.mean = GradientMean::over_samples});
    EXPECT_EQ(fault_of([&] { loss_of(ddp(inputs(0, 2))).backward(); }), Fault::misuse);
    DistributedDataParallel other(linear(), world);
    EXPECT_EQ(fault_of([&] { other.count_samples(3); }), Fault::misuse);
  });
}

// --- Ranks whose inputs end at different times ---------------------------------------------------

TEST(Join, RanksThatAreDoneDoNotStopTheOthers) {
  for (const bool by_all : {true, false})
    for (const bool overlap : {false, true})
      run_in_process(3, [&](ProcessGroup& world) {
        auto net = linear();
        auto whole = linear();
        auto sgd = sgd_of(net);
        auto whole_sgd = sgd_of(whole);
        DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 1e-5, .overlap = overlap});
        const auto train = [&] {
          for (int step = 0; step < 2 + 3 * world.rank(); ++step) {
            sgd.zero_grad();
            loss_of(ddp(inputs(10 * step + world.rank(), 10 * step + world.rank() + 2))).backward();
            sgd.step();
          }
        };
        ddp.join(train, {.divide_by_initial_world_size = by_all});
        for (int step = 0; step < 8; ++step) {
          whole_sgd.zero_grad();
          const int first = step < 2 ? 0 : step < 5 ? 1 : 2;
          for (int rank = first; rank < 3; ++rank)
            (loss_of(whole(inputs(10 * step + rank, 10 * step + rank + 2))) /
             (by_all ? 3 : 3 - first))
                .backward();
          whole_sgd.step();
        }
        expect_equal(net, whole);
        sgd.zero_grad();
        loss_of(ddp(inputs(0, 1))).backward();  // An ordinary pass again.
      });
}

TEST(Join, EveryRankEndsWithTheBuffersOfTheLastOne) {
  run_in_process(3, [](ProcessGroup& world) {
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(6, 4));
    net->push_back(torch::nn::BatchNorm1d(4));
    net->to(torch::kDouble);
    DistributedDataParallel ddp(net, world);
    ddp.join([&] {
      const int steps = world.rank() == 1 ? 5 : 3;
      for (int step = 0; step < steps; ++step) ddp(inputs(step, step + 4)).sum().backward();
    });
    const torch::Tensor counts = all_gather(net->named_buffers()["1.num_batches_tracked"], world);
    EXPECT_TRUE(counts.eq(5).all().item<bool>()) << counts;
    const torch::Tensor means = all_gather(net->named_buffers()["1.running_mean"], world);
    EXPECT_TRUE(torch::equal(means[0], means[1]) && torch::equal(means[1], means[2]));
  });
}

TEST(Join, AccumulatesAndAveragesOverTheSamplesThereWere) {
  run_in_process(2, [](ProcessGroup& world) {
    auto net = linear();
    DistributedDataParallel ddp(net, world, {.mean = GradientMean::over_samples});
    ddp.join([&] {
      for (int step = 0; step < 1 + world.rank(); ++step) {
        net->zero_grad();
        for (int part = 0; part < 2; ++part) {
          const auto no_sync = ddp.no_sync(part == 0);
          ddp.count_samples(3);
          loss_of(ddp(inputs(3 * part, 3 * part + 3))).backward();
        }
      }
      auto alone = linear();
      (loss_of(alone(inputs(0, 6))) / 6).backward();
      EXPECT_TRUE(torch::allclose(net->weight.grad(), alone->weight.grad(), 1e-12, 1e-12));
    });
  });
}

TEST(Join, AWindowThatIsNotCompleteIsForgotten) {
  run_in_process(2, [](ProcessGroup& world) {
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(6, 4));
    net->push_back(torch::nn::BatchNorm1d(4));
    net->to(torch::kDouble);
    DistributedDataParallel ddp(net, world, {.mean = GradientMean::over_samples});
    for (int epoch = 0; epoch < 2; ++epoch)
      ddp.join([&] {
        for (int part = 0; part < 3 + world.rank(); ++part) {  // Windows of two parts.
          const auto no_sync = ddp.no_sync(part % 2 == 0);
          ddp.count_samples(4);
          ddp(inputs(part, part + 4)).sum().backward();
        }
      });
    ddp.count_samples(4);
    net->zero_grad();
    ddp(inputs(0, 4)).sum().backward();
    const torch::Tensor all = all_gather(net->parameters()[3].grad(), world);
    EXPECT_TRUE(torch::allclose(all, torch::ones_like(all)));
  });
}

TEST(Join, ReportsMissingSamplesOnEveryRank) {
  const auto none_counted = [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world, {.mean = GradientMean::over_samples});
    ddp.join([&] {
      if (world.rank() == 0) loss_of(ddp(inputs(0, 2))).backward();
    });
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, none_counted); }), Fault::misuse);
}

TEST(Join, OptionsThatDifferAreAMismatch) {
  const auto differ = [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world);
    ddp.join([] {}, {.divide_by_initial_world_size = world.rank() == 0});
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, differ); }), Fault::mismatch);
}

TEST(Join, ChangesNothingForRanksWithEqualSteps) {
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world);
    ddp.join([&] { loss_of(ddp(inputs(0, 2))).backward(); }, {.throw_on_early_termination = true});
    ddp.join([] {});
  });
}

TEST(Join, MayThrowOnAllRanksWhenOneIsDone) {
  run_in_process(3, [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world);
    const auto train = [&] {
      for (int step = 0; step < (world.rank() == 2 ? 1 : 3); ++step)
        loss_of(ddp(inputs(0, 2))).backward();
    };
    EXPECT_EQ(fault_of([&] { ddp.join(train, {.throw_on_early_termination = true}); }),
              Fault::aborted);
    loss_of(ddp(inputs(0, 2))).backward();
  });
}

TEST(Join, PropagatesAnExceptionOfTheTraining) {
  run_in_process(1, [](ProcessGroup& world) {
    DistributedDataParallel ddp(linear(), world);
    EXPECT_THROW(ddp.join([] { throw std::runtime_error("the user's own"); }), std::runtime_error);
    ddp.join([&] { EXPECT_EQ(fault_of([&] { ddp.join([] {}); }), Fault::misuse); });
  });
}

}  // namespace
}  // namespace lockstep::parallel::join_test
