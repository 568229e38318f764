// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/memory_report.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>

#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/on_meta.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/data_parallel_calls.h"

namespace lockstep::observe::memory_report_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

// Has small gradients, in buckets, and large ones outside: 6.3 MiB in all.
struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return c->forward(torch::relu(b->forward(torch::relu(a->forward(x)))));
  }

  torch::nn::Linear a{500, 1001};
  torch::nn::Linear b{1001, 1103};
  torch::nn::Linear c{1103, 7};
};

constexpr std::size_t elements = 500 * 1001 + 1001 + std::size_t{1001} * 1103 + 1103 + 1103 * 7 + 7;
constexpr std::size_t bytes = elements * sizeof(float);

template <class Ddp>
void step(Ddp& ddp, torch::optim::Optimizer& optimizer,
          const torch::Tensor& x = torch::randn({4, 500})) {
  optimizer.zero_grad();
  const auto loss_of = [&](const torch::Tensor& rows) { return ddp(rows).pow(2).mean(); };
  if constexpr (test::HasMicrobatches<Ddp>)
    ddp.train_microbatches(
        0, [&](const GlobalMicrobatch& microbatch) { return loss_of(microbatch.of(x)); });
  else
    loss_of(x).backward();
  optimizer.step();
}

void expect_near(std::size_t a, std::size_t b) {
  EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), 0.02 * static_cast<double>(b));
}

void expect_near(const MemoryParts& measured, const MemoryParts& predicted) {
  expect_near(measured.parameters, predicted.parameters);
  expect_near(measured.gradients, predicted.gradients);
  expect_near(measured.optimizer_state, predicted.optimizer_state);
  expect_near(measured.buckets, predicted.buckets);
}

void expect_near(const MemoryReport& report) {
  for (std::size_t r = 0; r < report.measured.ranks.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    expect_near(report.measured.ranks[r], report.predicted.ranks[r]);
  }
  SCOPED_TRACE("host");
  expect_near(report.measured.host, report.predicted.host);
}

template <class Ddp>
MemoryReport report_after_steps(const ProcessGroup& group, Ddp& ddp,
                                torch::optim::Optimizer& optimizer) {
  for (int i = 0; i < 3; ++i) step(ddp, optimizer);
  const MemoryReport report = memory_report(ddp, optimizer);
  expect_near(report);
  EXPECT_EQ(report.measured.ranks.size(), static_cast<std::size_t>(group.size()));
  EXPECT_EQ(report.resident.size(), static_cast<std::size_t>(group.size()));
  return report;
}

// Trains with the optimizer from `make`, and reports.
template <class Make>
MemoryReport report_of(const ProcessGroup& group, Make make,
                       const DistributedDataParallelOptions& options = {}) {
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, group, options);
  return report_after_steps(group, ddp, *make(ddp, net->parameters()));
}

const torch::optim::AdamOptions adam_options(1e-3);

// A cache that all ranks have mapped counts once on the host.
const Ranks with_a_cache("with a cache", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  DistributedDataParallel ddp(std::make_shared<Net>(), group);
  Adam optimizer(ddp.replica().parameters(), adam_options);
  step(ddp, optimizer);
  const RegisteredMemory cache = group.allocate_shared(1 << 20);
  const RegisteredMemory own = group.allocate(1 << 20);  // Such as DataLoader::batch_memory().
  const auto both = memory_report(ddp, optimizer, group, {cache, own}).measured;
  EXPECT_EQ(both.ranks.front().caches, 2U << 20);
  EXPECT_EQ(both.host.caches, (1 + static_cast<std::size_t>(rank.world_size)) << 20);
  const MemoryReport report = memory_report(ddp, optimizer, group, {cache});
  for (const MemoryTable& table : {report.measured, report.predicted}) {
    EXPECT_EQ(table.host.caches, 1 << 20);
    EXPECT_EQ(table.ranks[static_cast<std::size_t>(rank.world_size) - 1].caches, 1 << 20);
  }
  const std::string text = to_string(report);
  EXPECT_NE(text.find("          caches                  1.00        1.00           -\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(to_string(memory_report(ddp, optimizer)).find("caches"), std::string::npos);
  destroy_process_group(group);
});

TEST(MemoryReport, CountsACacheOfAllRanksOnce) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(with_a_cache.run(ranks))) << ranks;
}

const Ranks plain("plain", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const auto n = static_cast<std::size_t>(rank.world_size);
  const MemoryReport report = report_of(group, [](auto&, const auto& parameters) {
    return std::make_unique<Adam>(parameters, adam_options);
  });
  EXPECT_EQ(report.measured.host.parameters, n * bytes);
  EXPECT_EQ(report.measured.host.optimizer_state, n * 2 * bytes);
  expect_near(report.measured.host.buckets + report.measured.host.gradients, n * bytes);

  EXPECT_FALSE(report.resident_host.parameters) << "they are not in memory of their own";
  ASSERT_EQ(report.resident_host.buckets.has_value(), n > 1);
  if (n > 1) expect_near(*report.resident_host.buckets, report.predicted.host.buckets);
  EXPECT_GT(report.resident[0].process, report.measured.ranks[0].total());
  destroy_process_group(group);
});

const Ranks shared_parameters("shared parameters", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const MemoryReport report =
      report_of(group,
                [](auto& ddp, const auto& parameters) {
                  return std::make_unique<SharedOptimizer<Adam>>(ddp, parameters, adam_options);
                },
                {.share_parameters = true});
  EXPECT_EQ(report.measured.ranks[0].parameters, bytes);
  EXPECT_EQ(report.measured.host.parameters, bytes);
  EXPECT_EQ(report.measured.host.optimizer_state, 2 * bytes);
  ASSERT_TRUE(report.resident_host.parameters);
  expect_near(*report.resident_host.parameters, bytes);
  destroy_process_group(group);
});

const Ranks zero("zero", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const MemoryReport report = report_of(group, [&](auto&, const auto& parameters) {
    return std::make_unique<ZeroRedundancyOptimizer<Adam>>(parameters, group, adam_options);
  });
  EXPECT_EQ(report.measured.host.parameters, static_cast<std::size_t>(rank.world_size) * bytes);
  EXPECT_EQ(report.measured.host.optimizer_state, 2 * bytes);
  destroy_process_group(group);
});

const Ranks zero_2("zero 2", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const MemoryReport report = report_of(group, [&](auto& ddp, const auto& parameters) {
    auto optimizer =
        std::make_unique<ZeroRedundancyOptimizer<Adam>>(parameters, group, adam_options);
    ddp.shard_gradients(*optimizer);
    return optimizer;
  });
  EXPECT_EQ(report.measured.host.parameters, static_cast<std::size_t>(rank.world_size) * bytes);
  EXPECT_EQ(report.measured.host.optimizer_state, 2 * bytes);
  EXPECT_EQ(report.measured.host.gradients, bytes);
  destroy_process_group(group);
});

const Ranks microbatches("microbatches", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup group = init_process_group();
  const auto net = std::make_shared<Net>();
  DeterministicDataParallel ddp(net, group, {.microbatches = 4, .share_parameters = true});
  SharedOptimizer<Adam> adam(ddp, net->parameters(), adam_options);
  const MemoryReport report = report_after_steps(group, ddp, adam);
  EXPECT_GE(report.measured.host.buckets, static_cast<std::size_t>(rank.world_size) * bytes);
  destroy_process_group(group);
});

const Ranks fully_sharded("fully sharded", [](const Rank&) {
  ProcessGroup group = init_process_group();
  for (const std::vector<std::string>& units : {std::vector<std::string>{}, {"*"}}) {
    const auto net = std::make_shared<Net>();
    FullyShardedDataParallel fsdp(net, group, {.units = units});
    FullyShardedOptimizer<Adam> adam(fsdp, net->parameters(), adam_options);
    for (int i = 0; i < 3; ++i) step(fsdp, adam);
    const MemoryReport report = memory_report(fsdp, adam);
    expect_near(report);
    EXPECT_EQ(report.measured.host.parameters, bytes);
    EXPECT_EQ(report.measured.host.optimizer_state, 2 * bytes);
  }
  destroy_process_group(group);
});

TEST(MemoryReport, MeasurementMatchesThePrediction) {
  for (const Ranks* sharing :
       {&plain, &shared_parameters, &zero, &zero_2, &microbatches, &fully_sharded})
    for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(sharing->run(ranks)));
}

TEST(MemoryReport, CountsTheProcessOnceForRanksThatAreThreads) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, world);
    Adam adam(net->parameters());
    step(ddp, adam);
    const MemoryReport report = memory_report(ddp, adam);
    EXPECT_EQ(report.measured.host.parameters, 2 * bytes);
    EXPECT_EQ(report.resident_host.process, report.resident[0].process);
    expect_near(report);
  });
}

// The prediction is for the time before zero_grad().
TEST(MemoryReport, GradientsThatAreGoneLeaveTheirBuckets) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, world);
    Adam adam(net->parameters());
    EXPECT_EQ(memory_report(ddp, adam).predicted.host.optimizer_state, 0);
    step(ddp, adam);
    adam.zero_grad();
    const MemoryReport report = memory_report(ddp, adam);
    EXPECT_EQ(report.measured.host.gradients, 0);
    EXPECT_GT(report.predicted.host.gradients, 0);
    expect_near(report.measured.host.buckets, report.predicted.host.buckets);
  });
}

// An embedding and two layers that are cut over two ranks, and a norm that is not.
struct Cut : torch::nn::Module {
  Cut() {
    register_module("wte", wte);
    register_module("norm", norm);
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    return out(torch::relu(in(norm(wte(tokens)))));
  }

  nn::Embedding wte{1001, 300};  // 501 and 500 rows: gradients of 600 KB, in the pool.
  nn::LayerNorm norm{torch::nn::LayerNormOptions({300})};
  nn::Linear in{300, 40}, out{40, 300};
};

// All but the embedding: half of both Linears, and the whole bias of the second one.
constexpr std::size_t small_bytes =
    sizeof(float) * (std::size_t{2} * 300 + 20 * 300 + 20 + 300 * 20 + 300);

// For the rank with `rows` rows of the embedding.
constexpr std::size_t bytes_of_part(std::size_t rows) {
  return sizeof(float) * rows * 300 + small_bytes;
}

void expect_parts(const ProcessGroup& world, int tp, bool shares) {
  SCOPED_TRACE("tp " + std::to_string(tp) + " of " + std::to_string(world.size()));
  const DeviceMesh mesh(world, {{"dp", -1}, {"tp", tp}});
  torch::manual_seed(1);
  const auto net = std::make_shared<Cut>();
  parallelize_module(
      *net, mesh["tp"],
      {{"wte", RowwiseParallel()}, {"in", ColwiseParallel()}, {"out", RowwiseParallel()}});
  DistributedDataParallel ddp(net, mesh["dp"], {.share_parameters = shares});
  std::unique_ptr<torch::optim::Optimizer> adam;
  if (shares)
    adam = std::make_unique<SharedOptimizer<Adam>>(ddp, net->parameters(), adam_options);
  else
    adam = std::make_unique<Adam>(net->parameters(), adam_options);
  for (int i = 0; i < 3; ++i) {
    adam->zero_grad();
    ddp(torch::arange(8)).pow(2).mean().backward();
    adam->step();
  }
  const MemoryReport report = memory_report(ddp, *adam, world);
  expect_near(report);
  const std::size_t copies = shares ? 1 : mesh.size("dp");
  std::size_t whole = 0;
  for (std::size_t r = 0; r < report.measured.ranks.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    const std::size_t part = bytes_of_part(r % 2 == 0 ? 501 : 500);
    if (r < 2) whole += part;
    const MemoryParts& measured = report.measured.ranks[r];
    EXPECT_EQ(measured.parameters, report.predicted.ranks[r].parameters);
    if (shares) continue;  // Its parameters are padded.
    EXPECT_EQ(measured.parameters, part);
    EXPECT_EQ(measured.optimizer_state, 2 * part);
    // Several replicas have buckets, into which small gradients are copied.
    const std::size_t copied = mesh.size("dp") > 1 ? small_bytes : 0;
    expect_near(measured.gradients + measured.buckets, part + copied);
  }
  expect_near(report.measured.host.parameters, copies * whole);
  expect_near(report.measured.host.optimizer_state, 2 * copies * whole);
}

const Ranks parts_of_ranks("parts", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  for (const bool shares : {false, true}) expect_parts(world, 2, shares);
  destroy_process_group(world);
});

TEST(MemoryReport, CountsOnlyEachRanksPartOfCutParameters) {
  for (const int ranks : {2, 4}) EXPECT_TRUE(all_succeeded(parts_of_ranks.run(ranks)));
}

TEST(MemoryReport, StateThatItDoesNotKnowIsRefused) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, world);
    torch::optim::LBFGS lbfgs(net->parameters());
    lbfgs.step([&] {
      lbfgs.zero_grad();
      const torch::Tensor loss = ddp(torch::ones({4, 500})).pow(2).mean();
      loss.backward();
      return loss;
    });
    EXPECT_EQ(fault_of([&] { memory_report(ddp, lbfgs); }), Fault::unsupported);
  });
}

// A language model whose output layer has the embedding's weights.
struct Tied : torch::nn::Module {
  Tied() {
    register_module("embedding", embedding);
    register_module("hidden", hidden);
    weight = register_parameter("weight", embedding->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return hidden(embedding(x)).tanh().matmul(weight.t());
  }

  torch::nn::Embedding embedding{3000, 50};  // 600 KB: its gradient is in the pool.
  torch::nn::Linear hidden{50, 50};
  torch::Tensor weight;
};

constexpr std::size_t tied_bytes = (3000 * 50 + 50 * 50 + 50) * sizeof(float);

struct TiedCase {
  DistributedDataParallelOptions options = {};
  bool zero = false;
  bool zero_2 = false;
};

std::unique_ptr<torch::optim::Optimizer> adam_of(DistributedDataParallel<Tied>& ddp,
                                                 const TiedCase& given, const ProcessGroup& world) {
  const std::vector<torch::Tensor> parameters{ddp.module()->weight, ddp.module()->hidden->weight,
                                              ddp.module()->hidden->bias};
  if (given.options.share_parameters)
    return std::make_unique<SharedOptimizer<Adam>>(ddp, parameters, adam_options);
  if (!given.zero) return std::make_unique<Adam>(parameters, adam_options);
  auto adam = std::make_unique<ZeroRedundancyOptimizer<Adam>>(parameters, world, adam_options);
  if (given.zero_2) ddp.shard_gradients(*adam);
  return adam;
}

TEST(MemoryReport, AParameterWithTwoNamesCountsOnce) {
  torch::set_num_threads(1);
  for (const TiedCase& given : {TiedCase{}, TiedCase{.options = {.share_parameters = true}},
                                TiedCase{.zero = true}, TiedCase{.zero = true, .zero_2 = true}})
    for (const int ranks : {1, 2})
      run_in_process(ranks, [&](ProcessGroup& world) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks");
        DistributedDataParallel ddp(std::make_shared<Tied>(), world, given.options);
        const auto adam = adam_of(ddp, given, world);
        for (int i = 0; i < 3; ++i) step(ddp, *adam, torch::arange(8).view({4, 2}));
        const MemoryReport report = memory_report(ddp, *adam);
        expect_near(report);
        expect_near(report.predicted.ranks[0].parameters, tied_bytes);
      });
}

TEST(MemoryReport, AParameterWithTwoNamesHasOneSumOfMicrobatches) {
  torch::set_num_threads(1);
  for (const int ranks : {1, 2})
    run_in_process(ranks, [&](ProcessGroup& world) {
      const auto net = std::make_shared<Tied>();
      DeterministicDataParallel ddp(net, world, {.microbatches = 2});
      Adam adam(std::vector{net->weight, net->hidden->weight, net->hidden->bias}, adam_options);
      for (int i = 0; i < 3; ++i) step(ddp, adam, torch::arange(8).view({4, 2}));
      const MemoryReport report = memory_report(ddp, adam);
      expect_near(report);
      expect_near(report.predicted.ranks[0].parameters, tied_bytes);
    });
}

TEST(MemoryReport, SharedParametersNeedNoMoreOnTheHostThanOneRank) {
  const Net net;
  const MemoryTable one = predict_memory(net, {.ranks = 1});
  const MemoryTable four =
      predict_memory(net, {.ranks = 4, .sharing = MemorySharing::shared_parameters});
  EXPECT_EQ(four.host.parameters, one.host.parameters);
  EXPECT_EQ(four.host.optimizer_state, one.host.optimizer_state);
  expect_near(4 * four.ranks[0].optimizer_state, 2 * bytes);
}

TEST(MemoryReport, ZeroDividesStateByWholeParameters) {
  const Net net;
  const MemoryTable table =
      predict_memory(net, {.ranks = 2, .sharing = MemorySharing::zero_stage_1});
  EXPECT_EQ(table.ranks[0].optimizer_state, std::size_t{1001} * 1103 * 2 * sizeof(float));
  EXPECT_EQ(table.host.optimizer_state, 2 * bytes);
  EXPECT_EQ(table.host.parameters, 2 * bytes);
  const MemoryTable second =
      predict_memory(net, {.ranks = 2, .sharing = MemorySharing::zero_stage_2});
  EXPECT_EQ(second.host.gradients, bytes);
  EXPECT_EQ(second.host.buckets, 0);
}

TEST(MemoryReport, ExpertsOfARankHaveNoBuckets) {
  run_in_process(2, [](ProcessGroup& group) {
    nn::Experts experts(4, 8, 6);
    experts->parallelize({ExpertParallel(), group, "experts"});
    const MemoryParts rank = predict_memory(*experts, {.ranks = 2}).ranks[1];
    const torch::nn::Linear router(torch::nn::LinearOptions(4, 6).bias(false));
    const MemoryParts of_router = predict_memory(*router, {.ranks = 2}).ranks[1];
    EXPECT_EQ(rank.gradients, experts->up.nbytes() + experts->down.nbytes() + of_router.gradients);
    EXPECT_EQ(rank.buckets, of_router.buckets);
  });
}

TEST(MemoryReport, AModuleWithoutMemoryIsPredictedLikeAnyOther) {
  const auto text_of = [](const torch::nn::Module& net) {
    return to_string(predict_memory(net, {.ranks = 4, .sharing = MemorySharing::fully_sharded}));
  };
  const auto make = [] { return std::make_shared<Tied>(); };
  EXPECT_EQ(text_of(*on_meta(make)), text_of(*make()));
}

TEST(MemoryReport, ItsTextHasLinesForEachRankAndTheHost) {
  MemoryReport report;
  report.predicted.ranks.resize(1);
  report.measured.ranks.resize(1);
  report.resident.resize(1);
  report.predicted.host.parameters = report.measured.host.parameters = std::size_t{3} << 19;
  report.resident_host.process = 1 << 20;
  const std::string text = to_string(report);
  EXPECT_NE(text.find("MiB                          predicted    measured    resident\n"
                      "rank 0    parameters              0.00        0.00           -\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("host      parameters              1.50        1.50           -\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("          process                    -           -        1.00\n"),
            std::string::npos)
      << text;
  const MemoryTable table{.ranks = {{}}, .host = {.buckets = 1 << 20}};
  EXPECT_NE(to_string(table).find("          buckets                 1.00\n"), std::string::npos)
      << to_string(table);
}

}  // namespace
}  // namespace lockstep::observe::memory_report_test
