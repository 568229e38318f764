// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/communication_hook.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::communication_hook_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

// Fixed weights: threads share the generator.
torch::nn::Linear net() {
  torch::nn::Linear linear(40, 30);
  const torch::NoGradGuard no_grad;
  for (auto& weights : linear->parameters())
    weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin());
  return linear;
}

void pass(DistributedDataParallel<torch::nn::LinearImpl>& ddp, int rank) {
  ddp.module()->zero_grad();
  ddp(torch::arange(80, torch::kFloat).view({2, 40}).add(rank).sin()).pow(2).sum().backward();
}

void for_both(int ranks, const std::function<void(ProcessGroup&, const Options&)>& body) {
  for (const bool overlap : {false, true}) {
    const Options options{.bucket_cap_mb = 0.001, .overlap = overlap};
    run_in_process(ranks, [&](ProcessGroup& world) { body(world, options); });
  }
}

std::vector<std::string> names_by_bucket(const BucketAssignment& assignment) {
  std::vector<std::string> names;
  for (std::size_t bucket = 0; bucket < assignment.size(); ++bucket)
    for (const std::size_t i : assignment[bucket])
      names.push_back(std::to_string(bucket) + (i == 0 ? "weight" : "bias"));
  return names;
}

TEST(CommunicationHook, ReplacesTheAllReduceAndReceivesEveryBucketInOrder) {
  for (const int ranks : {1, 3})
    for_both(ranks, [](ProcessGroup& world, const Options& given) {
      DistributedDataParallel plain(net(), world, given);
      DistributedDataParallel ddp(net(), world, given);
      std::vector<std::string> seen;
      ddp.register_comm_hook([&](GradientBucket& bucket) {
        EXPECT_EQ(bucket.gradients.size(), bucket.parameters.size());
        for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
          EXPECT_EQ(bucket.gradients[i].second.sizes(), bucket.parameters[i].sizes());
          seen.push_back(std::to_string(bucket.index) + bucket.gradients[i].first);
        }
        all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
      });
      for (int step = 0; step < 3; ++step) {
        seen.clear();
        pass(plain, world.rank());
        pass(ddp, world.rank());
        EXPECT_EQ(seen, names_by_bucket(ddp.stats().buckets));
        for (std::size_t i = 0; i < 2; ++i)
          EXPECT_TRUE(torch::allclose(plain.module()->parameters()[i].grad(),
                                      ddp.module()->parameters()[i].grad(), 1e-5, 1e-5));
      }
    });
}

TEST(CommunicationHook, CompressionGivesTheMeanOfRoundedGradients) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16})
    for_both(2, [&](ProcessGroup& world, const Options& given) {
      DistributedDataParallel ddp(net(), world, given);
      ddp.register_comm_hook(dtype == torch::kHalf ? fp16_compress_hook() : bf16_compress_hook());
      for (int step = 0; step < 3; ++step) {
        std::vector<torch::Tensor> halves;
        for (int rank = 0; rank < 2; ++rank) {
          auto alone = net();
          alone(torch::arange(80, torch::kFloat).view({2, 40}).add(rank).sin())
              .pow(2)
              .sum()
              .backward();
          halves.push_back(alone->weight.grad().to(dtype).div_(2));
        }
        pass(ddp, world.rank());
        EXPECT_TRUE(
            torch::equal(ddp.module()->weight.grad(), (halves[0] + halves[1]).to(torch::kFloat)));
      }
    });
}

TEST(CommunicationHook, PropagatesItsExceptionFromBackward) {
  for_both(2, [](ProcessGroup& world, const Options& given) {
    DistributedDataParallel ddp(net(), world, given);
    ddp.register_comm_hook([](GradientBucket&) { throw std::runtime_error("the hook's own"); });
    EXPECT_THROW(pass(ddp, world.rank()), std::runtime_error);
  });
}

TEST(CommunicationHook, AnExceptionOnOneRankAbortsTheHooksOfOthers) {
  for_both(3, [](ProcessGroup& world, const Options& given) {
    {
      DistributedDataParallel ddp(net(), world, given);
      ddp.register_comm_hook([&](GradientBucket& bucket) {
        if (world.rank() == 1) throw std::runtime_error("the hook's own");
        all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
      });
      std::string text;
      const auto begin = Clock::now();
      if (world.rank() == 1) {
        EXPECT_THROW(pass(ddp, 1), std::runtime_error);
      } else {
        EXPECT_EQ(fault_of([&] { pass(ddp, world.rank()); }, &text), Fault::aborted);
        EXPECT_NE(
            text.find("rank 1: a communication hook ended with std::runtime_error: the hook's own"),
            text.npos)
            << text;
      }
      EXPECT_LT(seconds_since(begin), 10);
      if (world.rank() == 1)
        EXPECT_ANY_THROW(pass(ddp, 1));
      else
        EXPECT_EQ(fault_of([&] { pass(ddp, world.rank()); }), Fault::aborted);
    }
    world.barrier();
  });
}

TEST(CommunicationHook, AnErrorOfItsOwnReachesTheOthersToo) {
  for (const Fault own : {Fault::system, Fault::timeout, Fault::mismatch})
    for_both(2, [own](ProcessGroup& world, const Options& given) {
      DistributedDataParallel ddp(net(), world, given);
      ddp.register_comm_hook([&](GradientBucket& bucket) {
        if (world.rank() == 1) throw Error(own, "the hook's own");
        all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
      });
      std::string text;
      EXPECT_EQ(fault_of([&] { pass(ddp, world.rank()); }, &text),
                world.rank() == 1 ? own : Fault::aborted);
      EXPECT_NE(text.find("the hook's own"), text.npos) << text;
    });
}

TEST(CommunicationHook, IsRegisteredOnceAndBeforeTheFirstPass) {
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(net(), world);
    EXPECT_EQ(fault_of([&] { ddp.register_comm_hook({}); }), Fault::misuse);
    ddp.register_comm_hook(fp16_compress_hook());
    EXPECT_EQ(fault_of([&] { ddp.register_comm_hook(fp16_compress_hook()); }), Fault::misuse);
    DistributedDataParallel late(net(), world);
    pass(late, world.rank());
    EXPECT_EQ(fault_of([&] { late.register_comm_hook(fp16_compress_hook()); }), Fault::misuse);
  });
}

}  // namespace
}  // namespace lockstep::parallel::communication_hook_test
