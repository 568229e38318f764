// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::parallel::distributed_data_parallel_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(norm->forward(torch::relu(conv->forward(x))).flatten(1));
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 4, 3).padding(1)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Linear out{4 * 5 * 5, 3};
};

// Behaves the same in training and evaluation.
struct Plain : torch::nn::Module {
  Plain() {
    register_module("a", a);
    register_module("b", b);
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(a->forward(x).tanh()); }

  torch::nn::Linear a{6, 9};
  torch::nn::Linear b{9, 2};
};

torch::Tensor inputs(int from, int to) {
  return torch::sin(torch::arange(from * 6, to * 6, torch::kDouble)).view({to - from, 6});
}

std::shared_ptr<Plain> plain(int seed) {
  torch::manual_seed(seed);
  auto net = std::make_shared<Plain>();
  net->to(torch::kDouble);
  return net;
}

const Ranks starts_equal("starts equal", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::manual_seed(rank.rank);
  auto net = std::make_shared<Net>();
  net->norm->running_mean.fill_(rank.rank);
  net->conv->weight.set_data(net->conv->weight.to(at::MemoryFormat::ChannelsLast));
  const std::string before = sha256(*net);
  DistributedDataParallel ddp(net, group);
  EXPECT_EQ(sha256(*net) == before, rank.rank == 0);
  const torch::Tensor sums = all_gather(net->conv->weight.sum(), group);
  EXPECT_TRUE(torch::equal(sums, sums[0].expand_as(sums)));
  EXPECT_EQ(net->norm->running_mean.sum().item<float>(), 0);
  EXPECT_EQ(net->named_parameters().keys()[0], "conv.weight");
  destroy_process_group(group);
});

TEST(DistributedDataParallel, EveryRankStartsWithTheWeightsAndBuffersOfRankZero) {
  EXPECT_TRUE(all_succeeded(starts_equal.run(3)));
}

const Ranks averages("averages", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const int n = rank.world_size;
  auto whole = plain(0);
  auto mine = plain(rank.rank);
  DistributedDataParallel ddp(mine, group);
  torch::optim::SGD whole_sgd(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD sgd(mine->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 10; ++step) {
    const int first = step * 4 * n;
    whole_sgd.zero_grad();
    whole->forward(inputs(first, first + 4 * n)).pow(2).mean().backward();
    whole_sgd.step();
    sgd.zero_grad(/*set_to_none=*/step % 2 == 0);
    ddp(inputs(first + 4 * rank.rank, first + 4 * rank.rank + 4)).pow(2).mean().backward();
    sgd.step();
  }
  for (const auto& [name, expected] : named_parameters(*whole)) {
    const torch::Tensor& ours = mine->named_parameters()[name];
    EXPECT_LE((ours - expected).abs().max().item<double>(), 1e-12) << name;
    const torch::Tensor all = all_gather(ours, group);
    EXPECT_TRUE(torch::equal(all, all[0].expand_as(all))) << name << " differs between ranks";
  }
  destroy_process_group(group);
});

TEST(DistributedDataParallel, TrainsAsOneProcessOnAllTheDataDoes) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(averages.run(ranks)));
}

const Ranks accumulates("accumulates", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  auto whole = plain(0);
  auto mine = plain(0);
  DistributedDataParallel ddp(mine, group);
  const auto loss = [](const torch::Tensor& out) { return out.pow(2).sum(); };
  for (int round = 0; round < 2; ++round) {
    mine->zero_grad();
    whole->zero_grad();
    {
      const auto no_sync = ddp.no_sync();
      for (int part = 0; part < 2; ++part)
        loss(ddp(inputs(10 * part + rank.rank, 10 * part + rank.rank + 1))).backward();
    }
    loss(ddp(inputs(20 + rank.rank, 21 + rank.rank))).backward();
    for (int part = 0; part < 3; ++part)
      for (int r = 0; r < rank.world_size; ++r)
        loss(whole->forward(inputs(10 * part + r, 10 * part + r + 1))).backward();
    for (const auto& [name, expected] : named_parameters(*whole)) {
      const torch::Tensor& ours = mine->named_parameters()[name].grad();
      EXPECT_LE((ours * rank.world_size - expected.grad()).abs().max().item<double>(), 1e-12);
    }
  }
  destroy_process_group(group);
});

TEST(DistributedDataParallel, UnderNoSyncGradientsAccumulateUntilTheNextSynchronisedPass) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(accumulates.run(ranks)));
}

const Ranks sequential("sequential", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::manual_seed(rank.rank);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(6, 4));
  net->push_back(torch::nn::Linear(4, 1));
  DistributedDataParallel ddp(net, group);
  ddp(inputs(rank.rank, rank.rank + 2).to(torch::kFloat)).sum().backward();
  const torch::Tensor all = all_gather(net->parameters()[0].grad(), group);
  EXPECT_TRUE(torch::equal(all, all[0].expand_as(all)));
  EXPECT_GT(all.abs().sum().item<float>(), 0);
  destroy_process_group(group);
});

TEST(DistributedDataParallel, TakesASequential) { EXPECT_TRUE(all_succeeded(sequential.run(2))); }

const Ranks gradients_outlive("gradients outlive", [](const Rank&) {
  auto net = plain(0);
  {
    ProcessGroup group = init_process_group();
    DistributedDataParallel ddp(net, group);
    ddp(inputs(0, 2)).sum().backward();
    destroy_process_group(group);
  }
  net->forward(inputs(0, 2)).sum().backward();  // The hooks are removed.
  EXPECT_GT(net->a->weight.grad().abs().sum().item<double>(), 0);
});

TEST(DistributedDataParallel, TheModuleAndItsGradientsOutliveIt) {
  EXPECT_TRUE(all_succeeded(gradients_outlive.run(2)));
}

const Ranks unused_named("unused named", [](const Rank&) {
  ProcessGroup group = init_process_group();
  auto net = plain(0);
  DistributedDataParallel ddp(net, group);
  ddp(inputs(0, 2));
  std::string text;
  const auto partial = [&] { net->a->forward(inputs(0, 2)).sum().backward(); };
  EXPECT_EQ(fault_of(partial, &text), Fault::misuse);
  EXPECT_NE(text.find("b.weight, b.bias"), text.npos) << text;
  ddp(inputs(0, 2)).sum().backward();
  destroy_process_group(group);
});

TEST(DistributedDataParallel, AParameterWithoutAPartInTheLossIsNamed) {
  EXPECT_TRUE(all_succeeded(unused_named.run(2)));
}

const Ranks frozen("frozen", [](const Rank&) {
  ProcessGroup group = init_process_group();
  auto net = plain(0);
  net->a->weight.requires_grad_(false);
  DistributedDataParallel ddp(net, group);
  ddp(inputs(0, 2)).sum().backward();
  EXPECT_FALSE(net->a->weight.grad().defined());
  EXPECT_TRUE(net->b->weight.grad().defined());
  destroy_process_group(group);
});

TEST(DistributedDataParallel, FrozenParametersAreLeftAlone) {
  EXPECT_TRUE(all_succeeded(frozen.run(2)));
}

const Ranks tied("tied", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::manual_seed(0);
  torch::nn::Sequential net;
  torch::nn::Linear twice(6, 6);
  net->push_back(twice);
  net->push_back(twice);
  DistributedDataParallel ddp(net, group);
  const auto loss = [](const torch::Tensor& out) { return out.pow(2).sum(); };
  loss(ddp(inputs(rank.rank, rank.rank + 1).to(torch::kFloat))).backward();
  const torch::Tensor ours = twice->weight.grad().clone();
  twice->zero_grad();
  const auto all = inputs(0, rank.world_size).to(torch::kFloat);
  (loss(net->forward(all)) / rank.world_size).backward();
  EXPECT_TRUE(torch::allclose(ours, twice->weight.grad(), 1e-5, 1e-6));
  destroy_process_group(group);
});

TEST(DistributedDataParallel, ParametersThatModulesShareAreAveragedOnce) {
  EXPECT_TRUE(all_succeeded(tied.run(2)));
}

const Ranks interrupted("interrupted", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  auto net = plain(0);
  DistributedDataParallel ddp(net, group);
  const auto loss = ddp(inputs(rank.rank, rank.rank + 1)).sum();
  bool armed = true;
  net->a->weight.register_hook([&](const torch::Tensor& gradient) {
    if (std::exchange(armed, false)) throw std::runtime_error("the user's own");
    return gradient;
  });
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
  net->zero_grad();
  loss.backward();  // Averaged as usual.
  const torch::Tensor all = all_gather(net->a->weight.grad(), group);
  EXPECT_TRUE(torch::equal(all[0], all[1]));
  destroy_process_group(group);
});

TEST(DistributedDataParallel, ABackwardThatThrewLeavesNothingToTheNext) {
  EXPECT_TRUE(all_succeeded(interrupted.run(2)));
}

// The layer is averaged in place, by threads if `overlap` is set.
void survive_a_kill(const Rank& rank, bool overlap) {
  ProcessGroup group = init_process_group();
  torch::nn::Sequential net;
  for (int i = 0; i < 3; ++i) net->push_back(torch::nn::Linear(400, 400));
  DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.1, .overlap = overlap});
  const auto pass = [&] { ddp(torch::ones({2, 400})).sum().backward(); };
  for (int i = 0; i < 3; ++i) pass();
  if (rank.rank == 1)
    net->parameters()[2].register_hook([](const torch::Tensor& gradient) {
      ::raise(SIGKILL);
      return gradient;
    });
  try {
    pass();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::peer_lost) << error.what();
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, 1);
    EXPECT_EQ(error.failure()->signal, SIGKILL);
  }
}

const Ranks killed_at_end("killed, at the end", [](const Rank& r) { survive_a_kill(r, false); });
const Ranks killed_during("killed, during", [](const Rank& r) { survive_a_kill(r, true); });

TEST(DistributedDataParallel, ARankThatIsKilledInBackwardIsNamedByTheOthersBackward) {
  for (const Ranks* ranks : {&killed_at_end, &killed_during}) {
    const auto exits = ranks->run(3);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (const int survivor : {0, 2})
      EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
          << exits[static_cast<std::size_t>(survivor)].output;
  }
}

const Ranks buffers("buffers", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, group);
  const auto images = torch::full({4, 2, 5, 5}, 1.0 + rank.rank);
  ddp(images).sum().backward();
  const torch::Tensor before = all_gather(net->norm->running_mean, group);
  EXPECT_FALSE(torch::equal(before[0], before[1]));
  ddp(torch::zeros({4, 2, 5, 5}));
  const torch::Tensor after = all_gather(net->norm->running_mean, group);
  EXPECT_TRUE(torch::equal(after[0], after[1]));
  const torch::Tensor tracked = all_gather(net->norm->num_batches_tracked, group);
  EXPECT_EQ(tracked[0].item<std::int64_t>(), 2);
  net->eval();
  const torch::NoGradGuard no_grad;
  ddp(images);  // Makes buffers equal.
  const torch::Tensor means = all_gather(net->norm->running_mean, group);
  EXPECT_TRUE(torch::equal(means[0], means[1]));
  if (rank.rank == 0) ddp(images);
  destroy_process_group(group);
});

TEST(DistributedDataParallel, BuffersFollowRankZeroInTrainingAndInTheFirstBatchOfAnEvaluation) {
  EXPECT_TRUE(all_succeeded(buffers.run(2)));
}

const Ranks other_layouts("other layouts", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::nn::Sequential net;
  net->push_back(torch::nn::Conv2d(2, 3, 3));
  const torch::Tensor weight = net->parameters()[0];
  if (rank.rank == 1) weight.set_data(weight.to(at::MemoryFormat::ChannelsLast));
  std::string text;
  EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, group); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("strides [18, 1, 6, 2]"), text.npos) << text;
});

const Ranks other_frozen("other frozen", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  auto net = plain(0);
  (rank.rank == 0 ? net->a : net->b)->weight.requires_grad_(false);
  EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, group); }), Fault::mismatch);
});

TEST(DistributedDataParallel, RanksMustAgreeOnStridesAndOnWhatIsTrained) {
  EXPECT_TRUE(all_succeeded(other_layouts.run(2)));
  EXPECT_TRUE(all_succeeded(other_frozen.run(2)));
}

const Ranks different("different", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(6, rank.rank == 1 ? 5 : 4));
  std::string text;
  EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, group); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("0.weight Float [5, 6]"), text.npos) << text;
  EXPECT_NE(text.find("rank 1"), text.npos) << text;
});

TEST(DistributedDataParallel, ModulesThatDifferAreNamedOnEveryRank) {
  EXPECT_TRUE(all_succeeded(different.run(3)));
}

}  // namespace
}  // namespace lockstep::parallel::distributed_data_parallel_test
