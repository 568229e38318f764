// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/drift_check.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::observe::drift_check_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("norm", norm);
    register_module("b", b);
    torch::NoGradGuard no_grad;
    for (auto& weight : parameters()) weight.fill_(0.25);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b->forward(norm->forward(a->forward(x)).tanh());
  }

  torch::nn::Linear a{6, 9};
  torch::nn::BatchNorm1d norm{9};
  torch::nn::Linear b{9, 2};
};

// The objects of each rank, and a training step that does not communicate.
struct Job {
  explicit Job(DriftCheckOptions options = {.every = 1}) : drift(*net, adam, group, options) {}

  // The message that drift.step() throws, equal on every rank.
  std::string found() {
    std::string text;
    EXPECT_EQ(fault_of([&] { drift.step(); }, &text), Fault::mismatch);
    for (const std::string& other : all_gather_bytes(text, group)) EXPECT_EQ(other, text);
    return text;
  }

  void expect_found(const std::string& part) {
    const std::string text = found();
    EXPECT_NE(text.find(part), text.npos) << text;
  }

  ProcessGroup group = init_process_group();
  std::shared_ptr<Net> net = std::make_shared<Net>();
  torch::optim::Adam adam{net->parameters(), torch::optim::AdamOptions(1e-3)};
  DriftCheck drift;
};

void set(const torch::Tensor& tensor, int index, float value) {
  tensor.detach().view(-1)[index] = value;
}

const Ranks stays_equal("drift: stays equal", [](const Rank& rank) {
  Job job;
  torch::manual_seed(rank.rank);
  DistributedDataParallel ddp(job.net, job.group);
  for (int step = 0; step < 20; ++step) {
    job.adam.zero_grad();
    ddp(torch::randn({4, 6})).pow(2).mean().backward();
    job.adam.step();
    job.drift.step();
  }
  destroy_process_group(job.group);
});

TEST(DriftCheck, FindsNothingInTraining) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(stays_equal.run(ranks)));
}

const Ranks one_bit("drift: one bit", [](const Rank& rank) {
  Job job({.every = 4});
  job.drift.step();
  if (rank.rank == 1) set(job.net->b->weight, 5, std::nextafter(0.25f, 1.0f));
  for (int step = 2; step < 4; ++step) job.drift.step();
  std::string text = job.found();
  text.erase(0, text.find("drift"));
  EXPECT_EQ(text.substr(0, text.find(" [")),  // The rest is the position in the source.
            "drift check after step 4: the replicas have drifted apart:\n  " +
                std::string(rank.world_size == 2 ? "rank 0 differs from rank 1"
                                                 : "rank 1 differs from ranks 0, 2") +
                " in 1 tensor: b.weight");
  if (rank.rank == 1) set(job.net->b->weight, 5, 0.25f);
  // The group stays usable, and nothing differs.
  for (int step = 4; step < 8; ++step) job.drift.step();
  destroy_process_group(job.group);
});

TEST(DriftCheck, NamesTheWeightThatDiffersByOneBitAndItsRank) {
  for (const int ranks : {2, 3}) EXPECT_TRUE(all_succeeded(one_bit.run(ranks)));
}

const Ranks zero_sign("drift: zero sign", [](const Rank& rank) {
  Job job;
  set(job.net->a->bias, 0, rank.rank == 2 ? -0.0f : 0.0f);
  job.expect_found("rank 2 differs from ranks 0, 1 in 1 tensor: a.bias");
  destroy_process_group(job.group);
});

TEST(DriftCheck, DistinguishesZerosOfDifferentSign) {
  EXPECT_TRUE(all_succeeded(zero_sign.run(3)));
}

const Ranks all_apart("drift: all apart", [](const Rank& rank) {
  Job job;
  torch::manual_seed(rank.rank);
  for (const auto& weight : job.net->parameters()) weight.detach().uniform_();
  job.expect_found("in 6 tensors: a.weight, a.bias, norm.weight, norm.bias, b.weight and 1 more");
  destroy_process_group(job.group);
});

TEST(DriftCheck, NamesTheFirstOfManyTensors) {
  EXPECT_TRUE(all_succeeded(all_apart.run(2)));
  EXPECT_TRUE(all_succeeded(all_apart.run(3)));
}

const Ranks strides("drift: strides", [](const Rank& rank) {
  Job job;
  const torch::Tensor values = torch::arange(54, torch::kFloat).view({9, 6});
  const torch::Tensor mine = rank.rank == 0 ? values.t().contiguous().t() : values;
  job.net->a->weight.set_data(mine);
  EXPECT_EQ(mine.is_contiguous(), rank.rank != 0);
  job.drift.step();
  if (rank.rank == 0) set(job.net->a->bias, 0, 7);
  job.net->a->weight.set_data(rank.rank == 0 ? mine.t().reshape({9, 6}) : mine);
  job.expect_found("rank 0 differs from rank 1 in 2 tensors: a.weight, a.bias");
  destroy_process_group(job.group);
});

TEST(DriftCheck, ComparesElementsWhereverTheyLie) { EXPECT_TRUE(all_succeeded(strides.run(2))); }

const Ranks shapes("drift: shapes", [](const Rank& rank) {
  Job job;
  if (rank.rank == 1) job.net->a->bias.set_data(torch::zeros({3, 3}, torch::kDouble));
  job.expect_found("a.bias Float [9] on ranks 0, 2; Double [3, 3] on rank 1");
  if (rank.rank == 1) job.net->register_parameter("extra", torch::zeros(2));
  job.expect_found("extra none on ranks 0, 2; Float [2] on rank 1");
  destroy_process_group(job.group);
});

TEST(DriftCheck, NamesShapesAndTypesThatDiffer) { EXPECT_TRUE(all_succeeded(shapes.run(3))); }

const Ranks buffers("drift: buffers", [](const Rank& rank) {
  Job without;
  DriftCheck with(*without.net, without.group, {.every = 1, .buffers = true});
  with.step();
  if (rank.rank == 1) without.net->norm->running_mean[3] = 1;
  without.drift.step();
  std::string text;
  EXPECT_EQ(fault_of([&] { with.step(); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("in 1 tensor: norm.running_mean"), text.npos) << text;
  destroy_process_group(without.group);
});

TEST(DriftCheck, ComparesBuffersWhenAsked) { EXPECT_TRUE(all_succeeded(buffers.run(2))); }

const Ranks options("drift: options", [](const Rank& rank) {
  Job job;
  const bool odd = rank.rank == 1;
  auto& of_adam = static_cast<torch::optim::AdamOptions&>(job.adam.param_groups()[0].options());
  of_adam.lr(odd ? 0.01 : 0.001);
  job.expect_found("drifted apart:\n  param group 0: lr 0.001 on ranks 0, 2; 0.01 on rank 1");
  of_adam.lr(0.001).betas({0.9, odd ? 0.99 : 0.999});
  job.expect_found("param group 0: betas (0.9, 0.999) on ranks 0, 2; (0.9, 0.99) on rank 1");
  of_adam.betas({0.9, 0.999});
  job.drift.step();
  destroy_process_group(job.group);
});

const Ranks momentum("drift: momentum", [](const Rank& rank) {
  Job job;
  const double mine = rank.rank == 0 ? 0.9 : 0.8;
  torch::optim::SGD sgd(job.net->parameters(), torch::optim::SGDOptions(1).momentum(mine));
  std::string text;
  const auto compare = [&] { require_equal_replicas(named_tensors(*job.net), sgd, job.group); };
  EXPECT_EQ(fault_of(compare, &text), Fault::mismatch);
  EXPECT_NE(text.find("param group 0: momentum 0.9 on rank 0; 0.8 on rank 1"), text.npos) << text;
  require_equal_replicas(named_tensors(*job.net), job.group);
  destroy_process_group(job.group);
});

TEST(DriftCheck, NamesHyperparametersWithTheirValues) {
  EXPECT_TRUE(all_succeeded(options.run(3)));
  EXPECT_TRUE(all_succeeded(momentum.run(2)));
}

const Ranks param_groups("drift: param groups", [](const Rank& rank) {
  Job job;
  if (rank.rank == 1) job.adam.param_groups()[0].params().pop_back();
  job.expect_found("param group 0: number of parameters 6 on rank 0; 5 on rank 1");
  if (rank.rank == 1) job.adam.add_param_group({{job.net->b->bias}});
  const std::string text = job.found();
  EXPECT_NE(text.find("number of param groups 1 on rank 0; 2 on rank 1"), text.npos) << text;
  EXPECT_NE(text.find("param group 1: lr none on rank 0; 0.001 on rank 1"), text.npos) << text;
  destroy_process_group(job.group);
});

TEST(DriftCheck, ComparesParamGroups) { EXPECT_TRUE(all_succeeded(param_groups.run(2))); }

const Ranks every("drift: every", [](const Rank& rank) {
  Job job({.every = 10});
  for (int round = 0; round < 3; ++round) {
    if (rank.rank == 1) set(job.net->a->weight, 0, 9);
    if (rank.rank == 1) job.group.barrier();
    for (int step = 1; step < 10; ++step) job.drift.step();
    if (rank.rank == 0) job.group.barrier();  // Waits for rank 1's work before this call.
    if (rank.rank == 1) set(job.net->a->weight, 0, 0.25f);
    job.drift.step();
  }
  destroy_process_group(job.group);
});

TEST(DriftCheck, DoesNothingBetweenComparisons) { EXPECT_TRUE(all_succeeded(every.run(2))); }

const Ranks out_of_step("drift: out of step", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  Net net;
  DriftCheck drift(net, group, {.every = rank.rank == 0 ? 2 : 3});
  const auto steps = [&] {
    for (int step = 0; step < 6; ++step) drift.step();
  };
  std::string text;
  EXPECT_EQ(fault_of(steps, &text), Fault::mismatch);
  EXPECT_NE(text.find("label"), text.npos) << text;
  EXPECT_EQ(text.find("drifted apart"), text.npos) << text;
});

const Ranks one_step_more("drift: one step more", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  Net net;
  DriftCheck drift(net, group, {.every = 1});
  std::string text;
  EXPECT_EQ(fault_of([&] { rank.rank == 0 ? drift.step() : group.barrier(); }, &text),
            Fault::mismatch);
  EXPECT_NE(text.find("rank 1 called barrier"), text.npos) << text;
});

TEST(DriftCheck, RanksThatAreNotInStepGetAMismatchFromTheGroup) {
  EXPECT_TRUE(all_succeeded(out_of_step.run(2)));
  EXPECT_TRUE(all_succeeded(one_step_more.run(2)));
}

const Ranks misuse("drift: misuse", [](const Rank&) {
  ProcessGroup group = init_process_group();
  Net net;
  EXPECT_EQ(fault_of([&] { DriftCheck(net, group, {.every = 0}); }), Fault::misuse);
  destroy_process_group(group);
});

TEST(DriftCheck, RefusesToBeMadeForNoSteps) { EXPECT_TRUE(all_succeeded(misuse.run(1))); }

}  // namespace
}  // namespace lockstep::observe::drift_check_test
