// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/sync_batch_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::parallel::sync_batch_norm_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;
using torch::nn::BatchNormOptions;

// --- Against BatchNorm on the whole batch --------------------------------------------------------

struct Case {
  std::vector<std::int64_t> shape;  // Shape of one row: [C, ...].
  std::vector<std::int64_t> rows;   // By rank, repeated.
  at::ScalarType type = at::kDouble;
  BatchNormOptions options = BatchNormOptions(0);
  double tolerance = 1e-12;
  bool channels_last = false;
  double offset = 3;  // Distance of the values from zero; they spread over about 1.
};

torch::Tensor values(const Case& c, std::int64_t from, std::int64_t to, double seed) {
  std::vector<std::int64_t> shape = c.shape;
  shape.insert(shape.begin(), to - from);
  std::int64_t of_row = 1;
  for (const std::int64_t size : c.shape) of_row *= size;
  const auto numbers = torch::arange(from * of_row, to * of_row, torch::kDouble);
  torch::Tensor all = (torch::sin(numbers * numbers * seed) + c.offset).view(shape).to(c.type);
  return c.channels_last ? all.contiguous(at::MemoryFormat::ChannelsLast) : all;
}

struct Result {
  torch::Tensor output, of_input, of_weight, of_bias, mean, variance;
};

template <class Norm>
Result steps(Norm norm, const Case& c,
             const std::vector<std::pair<std::int64_t, std::int64_t>>& at) {
  const at::ScalarType of_weights = c.type == at::kDouble ? at::kDouble : at::kFloat;
  norm->to(of_weights);
  if (norm->weight.defined()) {
    const at::NoGradGuard no_grad;
    norm->weight.copy_(torch::linspace(0.5, 2, norm->weight.numel()));
    norm->bias.copy_(torch::linspace(-1, 1, norm->bias.numel()));
  }
  Result result;
  for (const auto& [from, to] : at) {
    const torch::Tensor input = values(c, from, to, 0.7).set_requires_grad(true);
    result.output = norm->forward(input);
    (result.output * (values(c, from, to, 0.3) - c.offset)).sum().backward();
    result.of_input = input.grad();
  }
  if (norm->weight.defined()) {
    result.of_weight = norm->weight.grad();
    result.of_bias = norm->bias.grad();
  }
  result.mean = norm->running_mean;
  result.variance = norm->running_var;
  return result;
}

void expect_near(const torch::Tensor& ours, const torch::Tensor& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(ours.defined(), expected.defined()) << what;
  if (!ours.defined() || ours.numel() == 0) return;
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  EXPECT_EQ(ours.scalar_type(), expected.scalar_type()) << what;
  const torch::Tensor exact = expected.to(torch::kDouble);
  const double scale = std::max(1.0, exact.abs().max().item<double>());
  EXPECT_LE((ours.to(torch::kDouble) - exact).abs().max().item<double>(), tolerance * scale)
      << what;
}

template <class WholeNorm>
void compare(const ProcessGroup& group, Case c) {
  constexpr int count = 3;
  const std::int64_t of_ranks = [&] {
    std::int64_t sum = 0;
    for (int rank = 0; rank < group.size(); ++rank) sum += c.rows[rank % c.rows.size()];
    return sum;
  }();
  std::int64_t first = 0;
  for (int rank = 0; rank < group.rank(); ++rank) first += c.rows[rank % c.rows.size()];
  const std::int64_t mine = c.rows[group.rank() % c.rows.size()];
  std::vector<std::pair<std::int64_t, std::int64_t>> parts, wholes;
  for (int step = 0; step < count; ++step) {
    wholes.emplace_back(step * of_ranks, (step + 1) * of_ranks);
    parts.emplace_back(step * of_ranks + first, step * of_ranks + first + mine);
  }
  c.options.num_features(c.shape[0]);
  const Result ours = steps(SyncBatchNorm(c.options, group), c, parts);
  const Result whole = steps(WholeNorm(c.options), c, wholes);
  expect_near(ours.output, whole.output.narrow(0, first, mine), c.tolerance, "output");
  expect_near(ours.of_input, whole.of_input.narrow(0, first, mine), c.tolerance, "of input");
  expect_near(ours.mean, whole.mean, c.tolerance, "running mean");
  expect_near(ours.variance, whole.variance, c.tolerance, "running variance");
  if (!whole.of_weight.defined()) return;
  const torch::Tensor of_weight = ours.of_weight.clone(), of_bias = ours.of_bias.clone();
  all_reduce(of_weight, group);
  all_reduce(of_bias, group);
  expect_near(of_weight, whole.of_weight, c.tolerance, "of weight");
  expect_near(of_bias, whole.of_bias, c.tolerance, "of bias");
  if (!ours.mean.defined()) return;
  const torch::Tensor means = all_gather(ours.mean, group), vars = all_gather(ours.variance, group);
  EXPECT_TRUE(torch::equal(means, means[0].expand_as(means))) << "ranks' running means differ";
  EXPECT_TRUE(torch::equal(vars, vars[0].expand_as(vars))) << "ranks' running variances differ";
}

void compare_1d(const ProcessGroup& group, const Case& c) {
  compare<torch::nn::BatchNorm1d>(group, c);
}
void compare_2d(const ProcessGroup& group, const Case& c) {
  compare<torch::nn::BatchNorm2d>(group, c);
}
void compare_3d(const ProcessGroup& group, const Case& c) {
  compare<torch::nn::BatchNorm3d>(group, c);
}

const Ranks dimensions("dimensions", [](const Rank&) {
  ProcessGroup group = init_process_group();
  compare_1d(group, {.shape = {7}, .rows = {4}});
  compare_1d(group, {.shape = {5}, .rows = {150}});
  compare_1d(group, {.shape = {3, 11}, .rows = {4}});
  compare_2d(group, {.shape = {5, 6, 3}, .rows = {4}});
  compare_2d(group, {.shape = {2, 70, 70}, .rows = {2}});  // More than a chunk of a plane.
  compare_2d(group, {.shape = {5, 6, 3}, .rows = {4}, .channels_last = true});
  compare_2d(group, {.shape = {1, 1, 1}, .rows = {4}});
  compare_3d(group, {.shape = {4, 3, 2, 5}, .rows = {3}});
  destroy_process_group(group);
});

TEST(SyncBatchNorm, IsBatchNormOnTheWholeBatchInAllDimensions) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(dimensions.run(ranks)));
}

const Ranks uneven("uneven", [](const Rank&) {
  ProcessGroup group = init_process_group();
  for (const bool channels_last : {false, true}) {
    const auto with = [&](std::vector<std::int64_t> rows) {
      compare_2d(group, {.shape = {5, 6, 3}, .rows = rows, .channels_last = channels_last});
    };
    with({7, 2});
    with({1, 30, 5});
    with({0, 4});
    with({4, 0});
    with({0, 0, 4});
  }
  compare_1d(group, {.shape = {3}, .rows = {1}});  // One row on each rank, but two together.
  compare_1d(group, {.shape = {3}, .rows = {0, 5}});
  destroy_process_group(group);
});

TEST(SyncBatchNorm, TakesUnevenAndEmptyBatches) {
  for (const int ranks : {2, 3}) EXPECT_TRUE(all_succeeded(uneven.run(ranks)));
}

const Ranks options_of("options", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const auto with = [&](const BatchNormOptions& options) {
    compare_2d(group, {.shape = {5, 6, 3}, .rows = {4, 3}, .options = options});
  };
  with(BatchNormOptions(0).momentum(std::nullopt));
  with(BatchNormOptions(0).momentum(0.7).eps(0.1));
  with(BatchNormOptions(0).affine(false));
  with(BatchNormOptions(0).track_running_stats(false));
  with(BatchNormOptions(0).affine(false).track_running_stats(false));
  destroy_process_group(group);
});

TEST(SyncBatchNorm, HonoursItsOptions) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(options_of.run(ranks)));
}

const Ranks types("types", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const auto with = [&](at::ScalarType type, double tolerance, double offset = 3) {
    for (const bool last : {false, true})
      compare_2d(group, {.shape = {5, 8, 9},
                         .rows = {4, 3, 0},
                         .type = type,
                         .tolerance = tolerance,
                         .channels_last = last,
                         .offset = offset});
    compare_1d(group, {.shape = {5}, .rows = {40, 30}, .type = type, .tolerance = tolerance});
  };
  with(at::kFloat, 1e-5);
  with(at::kFloat, 2e-3, 1000);  // x * x would leave no digit of the variance.
  with(at::kHalf, 5e-3);
  with(at::kBFloat16, 4e-2);
  destroy_process_group(group);
});

TEST(SyncBatchNorm, TakesFloatAndHalfPrecision) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(types.run(ranks)));
}

TEST(SyncBatchNorm, ThreadsAsRanksAreTheSame) {
  run_in_process(3, [](ProcessGroup& group) {
    compare_2d(group, {.shape = {5, 6, 3}, .rows = {4, 0, 3}});
    compare_1d(group, {.shape = {5}, .rows = {4, 0, 3}});
  });
}

TEST(SyncBatchNorm, UsesAllOfATensThreads) {
  const int before = at::get_num_threads();
  run_in_process(2, [](ProcessGroup& group) {
    at::set_num_threads(3);
    for (const bool channels_last : {false, true})
      compare_2d(group, {.shape = {6, 20, 20}, .rows = {9}, .channels_last = channels_last});
  });
  at::set_num_threads(before);
}

// --- What it does not synchronise ----------------------------------------------------------------

TEST(SyncBatchNorm, WithoutAGroupIsPlainAndInEvaluationCommunicatesNothing) {
  run_in_process(2, [](ProcessGroup& group) {
    torch::nn::BatchNorm2d plain(3);
    SyncBatchNorm lone(3), evaluating(3, group);
    const torch::Tensor x = torch::arange(24.0).view({2, 3, 2, 2}) * (group.rank() + 1);
    EXPECT_TRUE(torch::equal(lone->forward(x), plain->forward(x)));
    EXPECT_TRUE(torch::equal(lone->running_var, plain->running_var));
    evaluating->eval();
    plain->running_mean.zero_();
    plain->running_var.fill_(1);
    plain->eval();
    if (group.rank() == 0) {
      EXPECT_TRUE(torch::equal(evaluating->forward(x), plain->forward(x)));
    }
    EXPECT_EQ(evaluating->num_batches_tracked.item<int>(), 0);
    EXPECT_EQ(evaluating->named_buffers().keys(), plain->named_buffers().keys());
    EXPECT_EQ(evaluating->named_parameters().keys(), plain->named_parameters().keys());
  });
}

TEST(SyncBatchNorm, TheWholeBatchMayBeEmptyOnEveryRank) {
  run_in_process(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(3, group);
    const torch::Tensor x = torch::zeros({0, 3, 2, 2}).set_requires_grad(true);
    norm->forward(x).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(norm->weight.grad().abs().sum().item<float>(), 0);
    EXPECT_EQ(norm->running_var.sum().item<float>(), 3);
  });
}

TEST(SyncBatchNorm, OneValuePerChannelOfAllRanksTogetherIsAnErrorOnAll) {
  run_in_process(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(3, group);
    std::string text;
    const torch::Tensor x = torch::ones({group.rank(), 3});
    EXPECT_EQ(fault_of([&] { norm->forward(x); }, &text), Fault::misuse);
    EXPECT_NE(text.find("more than 1 value per channel"), text.npos) << text;
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
    norm->forward(torch::ones({1, 3}));  // The group remains usable.
  });
}

TEST(SyncBatchNorm, WrongInputsAndSecondDerivativesAreRefused) {
  run_in_process(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(3, group);
    EXPECT_EQ(fault_of([&] { norm->forward(torch::ones({3})); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { norm->forward(torch::ones({2, 4})); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { norm->forward(torch::ones({2, 3}, torch::kDouble)); }), Fault::misuse);
    const torch::Tensor x = torch::ones({2, 3}).set_requires_grad(true);
    const torch::Tensor loss = norm->forward(x).sum();
    EXPECT_EQ(fault_of([&] { torch::autograd::grad({loss}, {x}, {}, {}, /*create_graph=*/true); }),
              Fault::unsupported);
  });
}

TEST(SyncBatchNorm, InputsThatAreNotPackedAndInputsWithoutGradientsAreFine) {
  run_in_process(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(3, group), same(3, group);
    const torch::Tensor x = torch::sin(torch::arange(48.0)).view({2, 4, 2, 3}).transpose(1, 3);
    const torch::Tensor y = norm->forward(x);  // [2, 3, 2, 4]
    y.sum().backward();                        // The gradient is an expanded scalar.
    EXPECT_TRUE(torch::equal(y, same->forward(x.contiguous())));
    EXPECT_EQ(norm->bias.grad()[0].item<float>(), 16);
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(norm->forward(x).requires_grad());
  });
}

TEST(SyncBatchNorm, AClonePrintsAndSynchronisesAsItsOriginal) {
  run_in_process(2, [](ProcessGroup& group) {
    torch::nn::Sequential net(SyncBatchNorm(BatchNormOptions(3).momentum(std::nullopt), group));
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    const torch::Tensor x = torch::ones({2, 3}) * group.rank();
    EXPECT_TRUE(torch::equal(copy->forward(x), net->forward(x)));
    EXPECT_GT(copy->forward(x).abs().sum().item<float>(), 1);
    EXPECT_NE(c10::str(*copy).find("lockstep::SyncBatchNorm(3, eps=1e-05, momentum=None, "
                                   "affine=true, track_running_stats=true)"),
              std::string::npos);
  });
}

// --- In a network --------------------------------------------------------------------------------

template <class Norm>
torch::nn::Sequential network() {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
  net->push_back(Norm(4));
  net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3)));
  net->push_back(Norm(3));
  net->to(torch::kDouble);
  return net;
}

const Ranks trains("trains", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const int n = rank.world_size;
  auto whole = network<torch::nn::BatchNorm2d>();
  auto mine = network<torch::nn::BatchNorm2d>();
  torch::optim::SGD whole_sgd(whole->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  torch::optim::SGD sgd(mine->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  convert_sync_batchnorm(*mine, group);
  DistributedDataParallel ddp(mine, group);
  const Case c{.shape = {2, 5, 5}, .rows = {}};
  for (int step = 0; step < 10; ++step) {
    const int first = step * 3 * n;
    whole_sgd.zero_grad();
    whole->forward(values(c, first, first + 3 * n, 0.7)).pow(3).mean().backward();
    whole_sgd.step();
    sgd.zero_grad();
    const int from = first + 3 * rank.rank;
    ddp(values(c, from, from + 3, 0.7)).pow(3).mean().backward();
    sgd.step();
    const auto expected = whole->parameters();
    const auto ours = mine->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i)
      expect_near(ours[i].grad(), expected[i].grad(), 1e-10, "gradient");
  }
  for (const auto& [name, expected] : named_tensors(*whole)) {
    const auto ours = named_tensors(*mine);
    for (const auto& [own_name, tensor] : ours)
      if (own_name == name) expect_near(tensor, expected, 1e-10, name.c_str());
  }
  destroy_process_group(group);
});

TEST(SyncBatchNorm, UnderDistributedDataParallelTrainsAsOneProcessOnAllTheData) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(trains.run(ranks)));
}

const Ranks swapped("swapped", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::nn::Sequential net(SyncBatchNorm(4), SyncBatchNorm(4));
  convert_sync_batchnorm(*net, group);
  const torch::Tensor x = torch::ones({2, 4});
  std::string text;
  EXPECT_EQ(fault_of([&] { net[rank.rank]->as<SyncBatchNorm>()->forward(x); }, &text),
            Fault::mismatch);
  EXPECT_NE(text.find("SyncBatchNorm " + std::to_string(rank.rank)), text.npos) << text;
});

const Ranks swapped_back("swapped back", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  torch::nn::Sequential net(SyncBatchNorm(4), SyncBatchNorm(4));
  convert_sync_batchnorm(*net, group);
  std::vector<torch::Tensor> losses;
  for (const int layer : {0, 1})
    losses.push_back(net[layer]
                         ->as<SyncBatchNorm>()
                         ->forward(torch::ones({2, 4}).set_requires_grad(true))
                         .sum());
  EXPECT_EQ(fault_of([&] { losses[rank.rank].backward(); }), Fault::mismatch);
});

TEST(SyncBatchNorm, LayersInAnotherOrderOnAnotherRankAreAMismatch) {
  EXPECT_TRUE(all_succeeded(swapped.run(2)));
  EXPECT_TRUE(all_succeeded(swapped_back.run(2)));
}

}  // namespace
}  // namespace lockstep::parallel::sync_batch_norm_test
