// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/plan.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/layers.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/toolkit/plan/allocation_log.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::plan_test {
namespace {

using plan::AllocationLog;
using test::fault_of;

constexpr std::int64_t width = 24, rows = 12;

LayerList layers() {
  LayerList layers;
  for (int i = 0; i < 3; ++i)
    layers.add("h." + std::to_string(i), [] { return nn::Linear(width, width); });
  layers.add("out", [] { return nn::Linear(width, 3); });
  return layers;
}

torch::Tensor loss_of(const torch::Tensor& output, const Microbatch& part) {
  return torch::mse_loss(output, part.of(torch::ones({rows, 3})));
}

torch::Tensor batch() { return torch::ones({rows, width}); }

const test::Ranks measure("plan: measure", [](const test::Rank&) {
  EXPECT_TRUE(plan_if_asked(layers(), batch(), loss_of, {.fully_sharded = true}));
});

const test::Ranks measure_cut("plan: measure cut layers", [](const test::Rank&) {
  EXPECT_TRUE(plan_if_asked(
      layers(), batch(), loss_of,
      {.tensor_parallel = {
           {"h.0", ColwiseParallel()}, {"h.1", RowwiseParallel()}, {"out", ColwiseParallel()}}}));
});

const test::Ranks measure_nothing("plan: measure nothing", [](const test::Rank&) {
  const auto plan = [](const LayerList& list, const torch::Tensor& inputs) {
    std::string text;
    EXPECT_EQ(fault_of([&] { plan_if_asked(list, inputs, loss_of); }, &text), Fault::misuse);
    return text;
  };
  const std::string file = std::getenv("LOCKSTEP_PLAN");
  EXPECT_NE(plan(layers(), torch::ones({0, width})).find("the batch has no rows"),
            std::string::npos);
  ::setenv("LOCKSTEP_PLAN", file.c_str(), 1);
  EXPECT_NE(plan(LayerList(), batch()).find("there are no layers"), std::string::npos);
  ::setenv("LOCKSTEP_PLAN", file.c_str(), 1);
  LayerList tied = layers();
  tied.tie("out.weight", "h.1.weight");
  EXPECT_NE(plan(tied, batch()).find("'out.weight' and 'h.1.weight' have other sizes"),
            std::string::npos);
});

struct WindowedImpl : torch::nn::Module {
  explicit WindowedImpl(int size) : window(size) { register_module("linear", linear); }
  torch::Tensor forward(const torch::Tensor& input) { return linear(input); }
  void pretty_print(std::ostream& stream) const override { stream << "Windowed(" << window << ")"; }

  int window;
  torch::nn::Linear linear{width, width};
};
TORCH_MODULE(Windowed);

struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(std::int64_t size) { register_buffer("mask", torch::ones({size, width})); }
  torch::Tensor forward(const torch::Tensor& input) { return input + linear(input); }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(width, width));
};
TORCH_MODULE(Masked);

const test::Ranks measure_similar("plan: measure similar layers", [](const test::Rank&) {
  using torch::nn::Sequential;
  LayerList list;
  list.add("first", [] { return Windowed(1); });
  for (const std::string name : {"relu.0", "relu.1"})
    list.add(name, [] { return Sequential(torch::nn::Linear(width, width), torch::nn::ReLU()); });
  list.add("gelu", [] { return Sequential(torch::nn::Linear(width, width), torch::nn::GELU()); });
  for (const double rate : {0.1, 0.2})
    list.add("dropout." + std::to_string(rate), [=] { return nn::Dropout(rate); });
  for (const int window : {1, 2})
    list.add("window." + std::to_string(window), [=] { return Windowed(window); });
  for (const int size : {1, 2})
    list.add("mask." + std::to_string(size), [=] { return Masked(size); });
  list.add("eval", [] {
    Masked masked(2);
    masked->eval();
    return masked;
  });
  list.add("out", [] { return nn::Linear(width, 3); });
  EXPECT_TRUE(plan_if_asked(list, batch(), loss_of));
});

const test::Ranks measure_named("plan: measure named kinds", [](const test::Rank&) {
  EXPECT_TRUE(plan_if_asked(layers(), batch(), loss_of, {.kind_of = [](const std::string& layer) {
                              return layer == "h.2" ? "long" : "short";
                            }}));
});

const test::Ranks measure_others("plan: ranks have other layers", [](const test::Rank& rank) {
  LayerList list;
  list.add(rank.rank == 0 ? "h" : "g", [] { return nn::Linear(width, 3); });
  std::string text;
  EXPECT_EQ(fault_of([&] { plan_if_asked(list, batch(), loss_of); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("rank 1 measured other layers or rows than rank 0"), text.npos) << text;
});

const test::Ranks refuse_alone("plan: one rank refuses", [](const test::Rank& rank) {
  LayerList list;
  list.add("h", [] { return nn::Linear(width, width); });
  const auto loss = [&](const torch::Tensor& output, const Microbatch&, const ProcessGroup& tp) {
    require(tp.size() == 1 || rank.rank == 0, "the loss wants whole logits");
    return output.sum();
  };
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  plan_if_asked(list, torch::ones({1, width}), loss,
                                {.tensor_parallel = {{"h", ColwiseParallel()}}});
                },
                &text),
            Fault::mismatch);
  EXPECT_NE(text.find("rank 1 cannot cut loss over 2 ranks, but others can: the loss wants whole"),
            text.npos)
      << text;
});

ModelProfile profile_of(const test::Ranks& body, int ranks) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path() / "profile.json";
  ::setenv("LOCKSTEP_PLAN", file.c_str(), 1);
  EXPECT_TRUE(test::all_succeeded(body.run(ranks)));
  ::unsetenv("LOCKSTEP_PLAN");
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return parse_model_profile(text.str());
}

TEST(PlanIfAsked, DoesNothingWithoutTheCommand) {
  EXPECT_FALSE(plan_if_asked(layers(), batch(), loss_of));
  ::setenv("LOCKSTEP_PLAN", "", 1);
  EXPECT_FALSE(plan_if_asked(layers(), batch(), loss_of));
  ::unsetenv("LOCKSTEP_PLAN");
}

TEST(PlanIfAsked, ReportsAProgramThatDoesNotCallIt) {
  ::setenv("LOCKSTEP_PLAN", "/no/such/file", 1);
  std::string text;
  EXPECT_EQ(fault_of([] { init_process_group(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("has to call lockstep::plan_if_asked() before init_process_group()"),
            text.npos)
      << text;
  ::unsetenv("LOCKSTEP_PLAN");
}

TEST(PlanIfAsked, MeasuresEachKindOfLayerOnce) {
  const ModelProfile profile = profile_of(measure, 2);
  EXPECT_EQ(profile.ranks, 2);
  EXPECT_EQ(profile.rows, rows);
  EXPECT_EQ(profile.layers, (std::vector<std::string>{"h.0", "h.1", "h.2", "out"}));
  EXPECT_EQ(profile.kind_of_layer, (std::vector<int>{0, 1, 1, 2}));
  EXPECT_EQ(profile.parameters, 3 * (width * width + width) + 3 * width + 3);
  EXPECT_TRUE(profile.has_fully_sharded);
  EXPECT_FALSE(profile.has_context_parallel);
  ASSERT_EQ(profile.kinds.size(), 3u);
  ASSERT_EQ(profile.kinds[1].parts.size(), 1u);
  const LayerPart& part = profile.kinds[1].parts[0];
  constexpr double bytes = 4 * (width * width + width);
  EXPECT_EQ(part.parameter_bytes, bytes);
  EXPECT_EQ(part.gradient_bytes, bytes);
  EXPECT_EQ(part.state_bytes, 2 * bytes);  // AdamW's.
  EXPECT_GT(part.optimizer, 0);
  ASSERT_EQ(part.samples.size(), 4u);
  int count = 0;
  for (const LayerSample& sample : part.samples) {
    EXPECT_EQ(sample.rows, (std::vector<int>{2, 3, 6, 12})[static_cast<std::size_t>(count++)]);
    const double output = 4. * width * sample.rows;
    EXPECT_EQ(sample.output_bytes, output);
    EXPECT_EQ(sample.kept_bytes, output);
    // The output, its gradient and that of the input.
    EXPECT_EQ(sample.peak_bytes, 3 * output);
    EXPECT_GT(sample.forward, 0);
    EXPECT_GT(sample.backward, 0);
    EXPECT_GT(sample.backward_input, 0);
    EXPECT_GT(sample.backward_weight, 0);
  }
  // mse_loss() needs its input for backward.
  ASSERT_EQ(profile.loss.parts.at(0).samples.size(), 4u);
  EXPECT_EQ(profile.loss.parts[0].samples[0].held_input_bytes, 4. * 3 * 2);
  ASSERT_EQ(profile.reduces.size(), 2u);
  EXPECT_LT(profile.reduces[0].bytes, profile.reduces[1].bytes);
  EXPECT_GT(profile.reduces[1].all_reduce, 0);
  EXPECT_GT(profile.copy_bandwidth, 0);
  EXPECT_GT(profile.process_bytes, 0);
}

TEST(PlanIfAsked, DistinguishesLayersThatDifferInAModule) {
  const ModelProfile profile = profile_of(measure_similar, 1);
  EXPECT_EQ(profile.kind_of_layer, (std::vector<int>{0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(PlanIfAsked, DistinguishesLayersOfDifferentKindsInTheProgram) {
  const ModelProfile profile = profile_of(measure_named, 1);
  EXPECT_EQ(profile.kind_of_layer, (std::vector<int>{0, 1, 2, 3}));
}

TEST(PlanIfAsked, RanksMeasureTheSameLayers) {
  const test::ScratchDirectory scratch;
  ::setenv("LOCKSTEP_PLAN", (scratch.path() / "profile.json").c_str(), 1);
  EXPECT_TRUE(test::all_succeeded(refuse_alone.run(2)));
  EXPECT_TRUE(test::all_succeeded(measure_others.run(2)));
  ::unsetenv("LOCKSTEP_PLAN");
}

TEST(PlanIfAsked, MeasuresForTheCommandAlone) {
  EXPECT_EQ(fault_of([] { plan::measure(layers(), {}, {}, {}); }), Fault::misuse);
}

TEST(PlanIfAsked, ReportsWhyALayerCannotBeCut) {
  const ModelProfile profile = profile_of(measure_cut, 2);
  EXPECT_EQ(profile.kind_of_layer, (std::vector<int>{0, 1, 2, 3}));
  constexpr double weight = 4 * width * width, bias = 4 * width;
  std::size_t kind = 0;
  for (const double bytes : {(weight + bias) / 2, weight / 2 + bias, weight + bias}) {
    ASSERT_EQ(profile.kinds.at(kind).parts.size(), 2u);
    const LayerPart& part = profile.kinds[kind++].parts[1];
    EXPECT_EQ(part.tp, 2);
    EXPECT_EQ(part.refusal, "");
    EXPECT_EQ(part.parameter_bytes, bytes);
    EXPECT_EQ(part.samples.size(), 4u);
  }
  ASSERT_EQ(profile.kinds.at(3).parts.size(), 2u);
  const LayerPart& refused = profile.kinds[3].parts[1];
  EXPECT_NE(refused.refusal.find("out"), std::string::npos) << refused.refusal;
  EXPECT_TRUE(refused.samples.empty());
  EXPECT_EQ(profile.loss.parts.size(), 1u);  // Was not reached.
}

TEST(PlanIfAsked, RefusesABatchAndAListWithoutContentAndAWrongTie) {
  const test::ScratchDirectory scratch;
  ::setenv("LOCKSTEP_PLAN", (scratch.path() / "profile.json").c_str(), 1);
  EXPECT_TRUE(test::all_succeeded(measure_nothing.run(1)));
  ::unsetenv("LOCKSTEP_PLAN");
}

TEST(MeasureLayers, GivesCostsForAPipeline) {
  run_in_process(2, [](ProcessGroup& world) {
    const std::vector<double> costs = measure_layers(layers(), batch());
    ASSERT_EQ(costs.size(), 4U);
    for (const double cost : costs) EXPECT_GT(cost, 0);
    EXPECT_EQ(Pipeline(layers(), world, {.costs = costs}).first_layers().size(), 2U);
  });
}

TEST(AllocationLog, CountsTensorsThatAreMadeWhileItExists) {
  torch::Tensor before = torch::ones({100});
  torch::Tensor later;
  {
    AllocationLog log;
    before.reset();
    EXPECT_EQ(log.live(), 0);
    const torch::Tensor one = torch::empty({100}, torch::kFloat);
    { const torch::Tensor two = torch::empty({50}, torch::kFloat); }
    later = torch::empty({25}, torch::kFloat);
    EXPECT_EQ(log.live(), 500);
    EXPECT_EQ(log.peak(), 600);
    log.leave_out(one.data_ptr());
    EXPECT_EQ(log.live(), 100);
    EXPECT_EQ(log.peak(), 200);
  }
  AllocationLog next;
  later.reset();  // Made during another log.
  EXPECT_EQ(next.live(), 0);
  EXPECT_EQ(next.peak(), 0);
}

}  // namespace
}  // namespace lockstep::plan_test
