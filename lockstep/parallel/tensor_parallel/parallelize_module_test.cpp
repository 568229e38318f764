// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/tensor_parallel/check_parallel.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::parallel::parallelize_module_test {
namespace {

using test::fault_of;
using test::fill;
using test::numbers;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("in", in);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) { return x + out(at::gelu(in(norm(x)))); }

  nn::LayerNorm norm{torch::nn::LayerNormOptions({6})};
  nn::Linear in{6, 24}, out{24, 6};
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    register_module("head", head);
    fill(*this);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head->forward(x);
  }

  torch::nn::ModuleList blocks;
  torch::nn::Sequential head{torch::nn::Linear(6, 12), torch::nn::GELU(), torch::nn::Linear(12, 3)};
};

const ParallelPlan plan = {{"blocks.*.in", ColwiseParallel()},
                           {"blocks.[0-9].out", RowwiseParallel()},
                           {"head.0", ColwiseParallel()},
                           {"head.2", RowwiseParallel()}};

at::Tensor loss_of(Net& net) { return net.forward(numbers({5, 6}, 0.2)).pow(2).sum(); }

class Parallelize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Parallelize, testing::Values(1, 2, 3));

TEST_P(Parallelize, AModelComputesWhatTheWholeOneDoes) {
  run_in_process(GetParam(), [](ProcessGroup& group) {
    Net whole, cut;
    const std::string digest = sha256(whole);
    parallelize_module(cut, group, plan);
    EXPECT_EQ(layouts_of(cut).size(), group.size() > 0 ? 9U : 0U);
    EXPECT_EQ(sha256(cut), digest) << "of the whole parameters";
    EXPECT_EQ(cut.named_parameters()["head.0.weight"].size(0), 12 / group.size());
    const at::Tensor expected = loss_of(whole), ours = loss_of(cut);
    expected.backward();
    ours.backward();
    const ParallelCheck check =
        compare_passes(whole, expected, cut, ours, group, {.tolerance = 1e-12});
    EXPECT_EQ(check.parameters, static_cast<std::int64_t>(whole.parameters().size()));

    for (const double norm_type : {2.0, 1.0, 3.0, static_cast<double>(INFINITY)}) {
      const double norm = clip_grad_norm_(whole, 1e9, norm_type).item<double>();
      EXPECT_NEAR(clip_grad_norm_(cut, 1e9, norm_type).item<double>(), norm, 1e-10 * norm);
    }
    clip_grad_norm_(whole, 0.5);
    clip_grad_norm_(cut, 0.5);
    compare_passes(whole, expected, cut, ours, group, {.tolerance = 1e-12});
  });
}

TEST(CheckParallel, NamesTheFirstGradientThatDiffers) {
  run_in_process(2, [](ProcessGroup& group) {
    Net whole, cut;
    parallelize_module(cut, group, plan);
    const at::Tensor expected = loss_of(whole), ours = loss_of(cut);
    expected.backward();
    ours.backward();
    const auto compare = [&] { compare_passes(whole, expected, cut, ours, group); };
    compare();
    std::string text;
    if (group.rank() == 1) cut.named_parameters()["blocks.1.out.weight"].mutable_grad()[0][1] += 1;
    EXPECT_EQ(fault_of(compare, &text), Fault::mismatch);
    EXPECT_NE(text.find("the gradient of blocks.1.out.weight differs by"), text.npos) << text;
    if (group.rank() == 1) cut.named_parameters()["blocks.0.norm.bias"].mutable_grad()[2] += 1;
    EXPECT_EQ(fault_of(compare, &text), Fault::mismatch);
    EXPECT_NE(text.find("on rank 1 the gradient of blocks.0.norm.bias differs"), text.npos) << text;
    cut.named_parameters()["blocks.0.norm.weight"].mutable_grad().reset();
    EXPECT_EQ(fault_of(compare, &text), Fault::mismatch);
    EXPECT_NE(text.find("the gradient of blocks.0.norm.weight is there in one of the models alone"),
              text.npos);
  });
}

TEST(Parallelize, ReportsAllThatIsWrongAndChangesNothing) {
  run_in_process(2, [](ProcessGroup& group) {
    Net net;
    const std::string digest = sha256(net);
    std::string text;
    const auto refused = [&](const ParallelPlan& wrong) {
      EXPECT_EQ(fault_of([&] { parallelize_module(net, group, wrong); }, &text), Fault::misuse);
      EXPECT_EQ(sha256(net), digest);
      EXPECT_TRUE(layouts_of(net).empty());
    };
    refused({{"blocks.*.in", ColwiseParallel({.segments = 5})},
             {"blocks.0.out", RowwiseParallel()},
             {"blocks.*.out", RowwiseParallel()},
             {"blocks.*.mlp", RowwiseParallel()},
             {"head.1", ColwiseParallel()},
             {"blocks.0.norm", ColwiseParallel()}});
    for (const char* part :
         {"blocks.0.in: out_features 24 in 5 segments cannot be cut evenly over 2 ranks: 20 or 30 "
          "can",
          "blocks.1.in: out_features", "blocks.0.out: two patterns of the plan name it",
          "'blocks.*.mlp': no layer has such a name", "is not a layer that can be cut",
          "blocks.0.norm: ColwiseParallel cannot cut a LayerNorm"})
      EXPECT_NE(text.find(part), text.npos) << part << " in " << text;

    parallelize_module(net, group, plan);
    EXPECT_EQ(fault_of([&] { parallelize_module(net, group, plan); }, &text), Fault::misuse);
    EXPECT_NE(text.find("blocks.0.in: it is cut already"), text.npos) << text;
    const auto norms = [&] {
      parallelize_module(net, group, {{"blocks.*.norm", SequenceParallel()}});
    };
    norms();
    EXPECT_EQ(fault_of(norms, &text), Fault::misuse);
    EXPECT_NE(text.find("blocks.1.norm: it is cut already"), text.npos) << text;
  });
}

TEST(Parallelize, AnInputOfAWrongWidthNamesBothLayers) {
  run_in_process(2, [](ProcessGroup& group) {
    const auto expect_error = [&](auto& net, const at::Tensor& x, const ParallelPlan& wrong,
                                  const std::string& expected) {
      parallelize_module(net, group, wrong);
      std::string text;
      EXPECT_EQ(fault_of([&] { net.forward(x); }, &text), Fault::misuse);
      EXPECT_NE(text.find(expected), text.npos) << text;
    };
    const at::Tensor x = numbers({5, 6}, 0.2);
    const std::string in_to_out =
        "blocks.1.out: an input of shape [5, 12], and it takes 24 features. It got this rank's "
        "part of the output of blocks.1.in: cut blocks.1.out with RowwiseParallel, or give "
        "blocks.1.in the output `replicated`";
    Net uncut, colwise, whole_in, gathered;
    expect_error(uncut, x, {{"blocks.1.in", ColwiseParallel()}}, in_to_out);
    expect_error(colwise, x,
                 {{"blocks.1.in", ColwiseParallel()}, {"blocks.1.out", ColwiseParallel()}},
                 in_to_out);
    expect_error(whole_in, x, {{"blocks.0.out", RowwiseParallel()}},
                 "blocks.0.out: an input of shape [5, 24], and it takes 12 features. Its input is "
                 "a part, unless RowwiseParallel has the input `replicated`");
    parallelize_module(gathered, group, {{"blocks.1.in", ColwiseParallel({.output = replicated})}});
    loss_of(gathered);

    torch::nn::Sequential with_norm(nn::Linear(6, 8), nn::RMSNorm(nn::RMSNormOptions({8})));
    fill(*with_norm);
    parallelize_module(*with_norm, group, {{"0", ColwiseParallel()}});
    std::string text;
    EXPECT_EQ(fault_of([&] { with_norm->forward(x); }, &text), Fault::misuse);
    EXPECT_NE(text.find("1: an input of shape [5, 4], and it takes 8 features. It got this rank's "
                        "part of the output of 0:"),
              text.npos)
        << text;
  });
}

TEST(Parallelize, RefusesParametersThatAreInUse) {
  run_in_process(2, [](ProcessGroup& group) {
    const auto refused = [&](Net& net) {
      const std::string digest = sha256(net);
      std::string text;
      EXPECT_EQ(fault_of([&] { parallelize_module(net, group, plan); }, &text), Fault::misuse);
      EXPECT_EQ(sha256(net), digest);
      EXPECT_TRUE(layouts_of(net).empty());
      return text;
    };
    const auto net = std::make_shared<Net>();
    at::Tensor loss = loss_of(*net);
    std::string text = refused(*net);
    EXPECT_NE(text.find("blocks.0.in: weight is in use: cut it before DistributedDataParallel"),
              text.npos)
        << text;
    loss.reset();
    {
      DistributedDataParallel ddp(net, group);
      text = refused(*net);
      EXPECT_NE(text.find("head.2: weight is in use"), text.npos) << text;
    }
    loss_of(*net).backward();
    text = refused(*net);
    EXPECT_NE(text.find("blocks.1.out: weight has a gradient already"), text.npos) << text;
    net->zero_grad();
    parallelize_module(*net, group, plan);
  });
}

// Fused optimizers create their state in the first step.
TEST(Parallelize, AnOptimizerThatHasSteppedRefusesParts) {
  run_in_process(2, [](ProcessGroup& group) {
    for (const bool stepped : {false, true}) {
      Net net;
      AdamW adamw(net.parameters(), torch::optim::AdamWOptions(1e-2));
      const auto step = [&] {
        loss_of(net).backward();
        adamw.step();
        net.zero_grad();
      };
      if (stepped) step();
      parallelize_module(net, group, plan);
      if (!stepped) {
        step();
      } else {
        std::string text;
        EXPECT_EQ(fault_of(step, &text), Fault::misuse);
        EXPECT_NE(text.find("state"), text.npos) << text;
      }
    }
  });
}

// Treating parts as copies would give wrong numbers.
TEST(Parallelize, PartsAreTakenForCopiesByNobody) {
  run_in_process(2, [](ProcessGroup& group) {
    const auto net = std::make_shared<Net>();
    parallelize_module(*net, group, plan);
    const std::string digest = sha256(*net);
    const auto refused = [&](Fault fault, const std::string& part, const auto& act) {
      std::string text;
      EXPECT_EQ(fault_of(act, &text), fault);
      EXPECT_NE(text.find(part), text.npos) << text;
    };
    refused(Fault::misuse, "different parts of a parameter",
            [&] { DistributedDataParallel ddp(net, group); });
    refused(Fault::misuse, "different parts of a parameter",
            [&] { FullyShardedDataParallel fsdp(net, group); });
    const torch::optim::SGDOptions options(1e-2);
    refused(Fault::mismatch, "the parameters of a sharded optimizer differ",
            [&] { ZeroRedundancyOptimizer<SGD> sgd(net->parameters(), group, options); });
    const auto parameters = net->parameters();
    refused(Fault::misuse, "call clip_grad_norm_(module, ...)",
            [&] { clip_grad_norm_(parameters, 1); });
    EXPECT_EQ(sha256(*net), digest);

    const ProcessGroup alone = group.split(group.rank());
    DistributedDataParallel ddp(net, alone);
    ZeroRedundancyOptimizer<SGD> sgd(net->parameters(), alone, options);
    refused(Fault::misuse, "cut over other ranks", [&] { sgd.clip_grad_norm_(1); });
    loss_of(*net).backward();
    sgd.step();
    clip_grad_norm_(*net, 1);
  });
}

struct Typed : torch::nn::Module {
  Typed() { register_module("out", out); }
  torch::nn::Linear out{4, 4};
};

TEST(Parallelize, SuggestsADeclarationForATypedMember) {
  run_in_process(2, [](ProcessGroup& group) {
    Typed typed;
    fill(typed);
    std::string text;
    EXPECT_EQ(fault_of(
                  [&] {
                    parallelize_module(typed, group, {{"out", RowwiseParallel()}});
                  },
                  &text),
              Fault::misuse);
    EXPECT_NE(text.find("declare it as lockstep::nn::Linear"), text.npos) << text;
  });
}

TEST(Parallelize, ReportsDifferencesBetweenRanks) {
  run_in_process(2, [](ProcessGroup& group) {
    Net net;
    std::string text;
    const ParallelStyle style = group.rank() == 0 ? ParallelStyle(ColwiseParallel())
                                                  : ParallelStyle(ColwiseParallel({.segments = 2}));
    const auto differing_plans = [&] { parallelize_module(net, group, {{"blocks.*.in", style}}); };
    EXPECT_EQ(fault_of(differing_plans, &text), Fault::mismatch);
    EXPECT_NE(text.find("segments"), text.npos) << text;
    const at::NoGradGuard no_grad;
    if (group.rank() == 1) net.parameters()[3].add_(1);
    EXPECT_EQ(fault_of([&] { parallelize_module(net, group, plan); }, &text), Fault::mismatch);
    for (const char* part : {"blocks.0.in.bias", "rank 1"})
      EXPECT_NE(text.find(part), text.npos) << part << " in " << text;
    EXPECT_TRUE(layouts_of(net).empty());
  });
}

TEST(Parallelize, ASequenceParallelModelComputesWhatTheWholeOneDoes) {
  run_in_process(2, [](ProcessGroup& group) {
    const at::Tensor x = numbers({3, 8, 6}, 0.3);
    Net whole, cut;
    const at::Tensor expected = whole.forward(x).pow(2).sum();
    expected.backward();
    parallelize_module(cut, group,
                       {{"blocks.*.norm", SequenceParallel()},
                        {"blocks.*.in", ColwiseParallel({.input = sharded(1)})},
                        {"blocks.*.out", RowwiseParallel({.output = sharded(1)})},
                        {"head.0", ColwiseParallel({.input = sharded(1)})},
                        {"head.2", RowwiseParallel()}});
    const at::Tensor ours = cut.forward(scatter_to_parallel_region(x, group, 1)).pow(2).sum();
    ours.backward();
    compare_passes(whole, expected, cut, ours, group, {.tolerance = 1e-12});
  });
}

const test::Ranks across_hosts("parallelize_module() across hosts", [](const test::Rank& rank) {
  auto world = test::join_across_hosts(rank);
  Net whole, cut;
  std::string text;
  EXPECT_EQ(fault_of([&] { parallelize_module(cut, world, plan); }, &text), Fault::misuse);
  EXPECT_NE(text.find("the 2 ranks of group world are on several hosts"), text.npos) << text;
  EXPECT_TRUE(layouts_of(cut).empty());
  parallelize_module(cut, world, plan, {.across_hosts = true});
  const double expected = loss_of(whole).item<double>();
  EXPECT_NEAR(loss_of(cut).item<double>(), expected, 1e-12 * expected);
  destroy_process_group(world);
});

TEST(Parallelize, CutsAcrossHostsOnlyIfThatIsAllowed) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  test::HostLayout{"ab", "shm+gloo"}.set();
  EXPECT_TRUE(all_succeeded(across_hosts.run(2)));
  test::HostLayout::unset();
}

const test::Ranks checked("check_parallel()", [](const test::Rank& /*rank*/) {
  auto world = init_process_group();
  torch::manual_seed(5);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const auto check = [&](double error) {
    return check_parallel(
        [] { return std::make_shared<Net>(); },
        [&](Net& net) { parallelize_module(net, world, plan); },
        [&](Net& net, bool is_parallel) { return loss_of(net) * (is_parallel ? 1 + error : 1.0); },
        world);
  };
  EXPECT_LT(check(0).difference, 1e-12);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  std::string text;
  EXPECT_EQ(fault_of([&] { check(1e-3); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("on rank 0 the loss differs by 0.001 of its largest value"), text.npos)
      << text;
  destroy_process_group(world);
});

TEST(CheckParallel, MakesRunsAndComparesBoth) { EXPECT_TRUE(all_succeeded(checked.run(2))); }

}  // namespace
}  // namespace lockstep::parallel::parallelize_module_test
