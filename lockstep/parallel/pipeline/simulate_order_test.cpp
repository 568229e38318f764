// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/simulate_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/rigs/random_pipeline_order.h"

namespace lockstep::parallel::simulate_order_test {
namespace {

using test::fault_of;
using test::random_pipeline_order;
using enum PipelineSchedule;
using Ints = std::vector<int>;
using Doubles = std::vector<double>;

double bubble_of(PipelineSchedule schedule, const PipelineShape& shape,
                 const PipelineStageCost& cost = {}) {
  return simulate(make_pipeline_order(schedule, shape), {cost}).bubble;
}

// (P - 1) / (v M + P - 1), where a stage's forward and backward are the unit.
double known_bubble(const PipelineShape& shape) {
  const int idle = shape.ranks - 1;
  return static_cast<double>(idle) /
         static_cast<double>(shape.stages_per_rank * shape.microbatches + idle);
}

TEST(Simulate, BubblesAreThoseOfThePapers) {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const int microbatches : {8, 16, 48}) {
      const PipelineShape one{ranks, microbatches, 1};
      EXPECT_NEAR(bubble_of(gpipe, one), known_bubble(one), 1e-12);
      EXPECT_NEAR(bubble_of(one_f_one_b, one), known_bubble(one), 1e-12);
      for (const int stages : {2, 3}) {
        const PipelineShape several{ranks, microbatches, stages};
        if (microbatches % ranks == 0) {
          EXPECT_NEAR(bubble_of(interleaved, several), known_bubble(several), 1e-12);
        }
        EXPECT_NEAR(bubble_of(looped_bfs, several), known_bubble(several), 1e-12);
      }
      // A third of 1F1B's idle time remains.
      if (microbatches % ranks == 0) {
        EXPECT_NEAR(bubble_of(zero_bubble, one), (ranks - 1.) / (3. * microbatches + ranks - 1.),
                    1e-12);
      }
    }
  EXPECT_NEAR(bubble_of(gpipe, {4, 6, 1}, {.forward = 3, .whole_backward = 5}),
              known_bubble({4, 6, 1}), 1e-12);
}

TEST(Simulate, ZbvIdlesWhileThePipelineFillsAlone) {
  // The last rank waits for ranks - 1 forwards, and equally long for the others at the end.
  for (const int ranks : {2, 4, 8}) {
    const auto simulated = simulate(make_pipeline_order(zbv, {ranks, 4 * ranks}));
    EXPECT_EQ(simulated.time, 6 * 4 * ranks + ranks - 1);
  }
}

TEST(Simulate, OneForwardOneBackwardKeepsAsManyMicrobatchesAsStagesFollow) {
  const auto simulated =
      simulate(make_pipeline_order(one_f_one_b, {4, 8}), {{.activation_bytes = 100}});
  EXPECT_EQ(simulated.peak_microbatches, (Ints{4, 3, 2, 1}));
  EXPECT_EQ(simulated.peak_bytes, (Doubles{400, 300, 200, 100}));
  EXPECT_EQ(simulate(make_pipeline_order(gpipe, {4, 8})).peak_microbatches, (Ints{8, 8, 8, 8}));
}

TEST(Simulate, BytesForWeightsAreKeptUntilTheirGradients) {
  const PipelineOrder order = make_pipeline_order(zero_bubble, {2, 2});
  ASSERT_EQ(to_string(order), "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  const auto simulated = simulate(order, {{.activation_bytes = 10, .weight_bytes = 3}});
  EXPECT_EQ(simulated.peak_bytes, (Doubles{20, 13}));
  EXPECT_EQ(simulated.peak_microbatches, (Ints{2, 2}));
  const auto more = simulate(order, {{.activation_bytes = 10, .weight_bytes = 12}});
  EXPECT_EQ(more.peak_bytes, (Doubles{22, 24}));
}

TEST(Simulate, TimesOfTwoStagesByHand) {
  const PipelineStageCost first{.forward = 2, .whole_backward = 3, .send = 0.5};
  const PipelineStageCost second{.forward = 1, .whole_backward = 4, .send = 100};
  const auto simulated = simulate(make_pipeline_order(one_f_one_b, {2, 2}), {first, second});
  std::map<std::string, double> begins;
  for (const auto& rank : simulated.actions)
    for (const auto& [action, begin, end] : rank) begins[to_string(action)] = begin;
  const std::map<std::string, double> expected{{"0F0", 0},   {"0F1", 2},   {"1F0", 2.5},
                                               {"1B0", 3.5}, {"1F1", 7.5}, {"1B1", 8.5},
                                               {"0B0", 8},   {"0B1", 13}};
  EXPECT_EQ(begins, expected);
  EXPECT_EQ(simulated.time, 16);
  EXPECT_NEAR(simulated.bubble, 1 - 20. / 32, 1e-12);
}

TEST(Simulate, StagesOfOneRankSendNothing) {
  const PipelineStageCost cost{.forward = 1, .whole_backward = 2, .send = 1000};
  EXPECT_EQ(simulate(make_pipeline_order(looped_bfs, {1, 3, 4}), {cost}).time, 36);
  EXPECT_EQ(simulate(make_pipeline_order(looped_bfs, {1, 3, 4}), {cost}).bubble, 0);
}

TEST(Simulate, CostsThatMakeNoSenseAreRefused) {
  const PipelineOrder order = make_pipeline_order(gpipe, {3, 2});
  EXPECT_EQ(fault_of([&] { simulate(order, {{}, {}}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { simulate(order, {}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { simulate(order, {{.forward = -1}}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { simulate(order, {{.send = NAN}}); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { simulate({}); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { slots_of({}); }), Fault::misuse);
  EXPECT_EQ(simulate(order, {{.forward = 0, .backward_input = 0, .backward_weight = 0}}).bubble, 0);
}

TEST(SlotsOf, SmallOrdersByHand) {
  // All outputs are in use before the first backward, and gradients may be if the sender is fast.
  const auto of_gpipe = slots_of(make_pipeline_order(gpipe, {3, 5}));
  EXPECT_EQ(of_gpipe.outputs, (Ints{5, 5}));
  EXPECT_EQ(of_gpipe.gradients, (Ints{5, 5}));
  // 1F1B: a stage's output m + stages after it needs the gradient of m.
  const auto of_1f1b = slots_of(make_pipeline_order(one_f_one_b, {4, 8}));
  EXPECT_EQ(of_1f1b.outputs, (Ints{4, 3, 2}));
  EXPECT_EQ(of_1f1b.gradients, (Ints{4, 3, 2}));
  // Both stages of the V's point are on one rank.
  const auto of_zbv = slots_of(make_pipeline_order(zbv, {2, 4}));
  EXPECT_EQ(of_zbv.outputs[1], 0);
  EXPECT_EQ(of_zbv.gradients[1], 0);
  // One rank has no slots, one stage has no boundary.
  EXPECT_EQ(slots_of(make_pipeline_order(looped_bfs, {1, 3, 3})).outputs, (Ints{0, 0}));
  EXPECT_TRUE(slots_of(make_pipeline_order(gpipe, {1, 3})).outputs.empty());
}

TEST(SlotsOf, AnOutputIsInUseUntilTheWeightsGradient) {
  PipelineOrder order{1, {0, 1}, {{}, {}}};
  const auto add = [&](std::size_t rank, const char* text) {
    order.actions[rank].push_back(parse_pipeline_action(text));
  };
  order.microbatches = 2;
  for (const char* text : {"0F0", "0B0", "0F1", "0B1"}) add(0, text);
  for (const char* text : {"1F0", "1I0", "1W0", "1F1", "1I1", "1W1"}) add(1, text);
  EXPECT_EQ(slots_of(order).outputs, Ints{2});  // 1W0 may go on when 0F1 begins.
  order.actions[1] = {};
  for (const char* text : {"1F0", "1B0", "1F1", "1B1"}) add(1, text);
  EXPECT_EQ(slots_of(order).outputs, Ints{1});
  EXPECT_EQ(slots_of(order).gradients, Ints{1});
}

PipelineSlots used_in(const PipelineOrder& order, const SimulatedPipeline& simulated) {
  std::map<std::tuple<int, int>, TimedPipelineAction> forward;
  std::map<std::tuple<int, int>, TimedPipelineAction> gradient;
  std::map<std::tuple<int, int>, TimedPipelineAction> last;
  for (const auto& actions : simulated.actions)
    for (const auto& timed : actions) {
      const std::tuple of{timed.action.stage, timed.action.microbatch};
      if (timed.action.kind == PipelineActionKind::forward)
        forward[of] = timed;
      else
        last[of] = timed;  // backward_weight follows backward_input.
      if (timed.action.kind == PipelineActionKind::backward ||
          timed.action.kind == PipelineActionKind::backward_input)
        gradient[of] = timed;
    }
  const auto most = [&](auto& from, int stage, auto& to, int to_stage) {
    int result = 0;
    for (int at = 0; at < order.microbatches; ++at) {
      int in_use = 0;
      const double now = from[{stage, at}].begin;
      for (int other = 0; other < order.microbatches; ++other)
        if (from[{stage, other}].begin <= now && to[{to_stage, other}].end > now) ++in_use;
      result = std::max(result, in_use);
    }
    return result;
  };
  PipelineSlots used;
  for (int stage = 0; stage + 1 < order.stages(); ++stage) {
    used.outputs.push_back(most(forward, stage, last, stage + 1));
    used.gradients.push_back(most(gradient, stage + 1, last, stage));
  }
  return used;
}

TEST(SlotsOf, NoTimingNeedsMore) {
  std::mt19937 random(1);
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const PipelineOrder order = random_pipeline_order(seed);
    const PipelineSlots slots = slots_of(order);
    std::vector<PipelineStageCost> costs(order.rank_of_stage.size());
    for (auto& cost : costs)
      for (double* part : {&cost.forward, &cost.backward_input, &cost.backward_weight})
        *part = (random() % 3 == 0 ? 100 : 0.01) * static_cast<double>(1 + random() % 9);
    const PipelineSlots used = used_in(order, simulate(order, costs));
    for (int stage = 0; stage + 1 < order.stages(); ++stage) {
      const auto i = static_cast<std::size_t>(stage);
      if (order.rank_of_stage[i] == order.rank_of_stage[i + 1]) {
        EXPECT_EQ(slots.outputs[i] + slots.gradients[i], 0);
      } else {
        EXPECT_LE(used.outputs[i], slots.outputs[i]) << seed;
        EXPECT_LE(used.gradients[i], slots.gradients[i]) << seed;
      }
    }
  }
}

class EndedFirst {
 public:
  EndedFirst(const PipelineOrder& order, const PipelineAction& action) : order_(order) {
    add_before(action);
  }
  bool has(int stage, PipelineActionKind kind, int microbatch) const {
    return ended_.contains(to_string(PipelineAction{stage, kind, microbatch}));
  }
  bool has_last(int stage, int microbatch) const {
    using enum PipelineActionKind;
    return has(stage, backward, microbatch) || has(stage, backward_weight, microbatch);
  }

 private:
  void add(const PipelineAction& action) {
    if (ended_.insert(to_string(action)).second) add_before(action);
  }
  void add_before(const PipelineAction& action) {
    using enum PipelineActionKind;
    for (const auto& actions : order_.actions)
      for (auto at = actions.begin(); at != actions.end(); ++at) {
        if (*at == action && at != actions.begin()) add(at[-1]);
        if (at->microbatch != action.microbatch) continue;
        const bool gives_gradient = at->kind == backward || at->kind == backward_input;
        if (action.kind == forward && at->kind == forward && at->stage == action.stage - 1)
          add(*at);
        if ((action.kind == backward || action.kind == backward_input) && gives_gradient &&
            at->stage == action.stage + 1)
          add(*at);
      }
  }

  const PipelineOrder& order_;
  std::set<std::string> ended_;
};

// When everything that need not have ended is slow, each action that takes a slot finds the maximum
// in use.
TEST(SlotsOf, SomeTimingNeedsAsMany) {
  using enum PipelineActionKind;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const PipelineOrder order = random_pipeline_order(seed);
    PipelineSlots most;
    most.outputs = most.gradients = Ints(order.rank_of_stage.size() - 1);
    for (const auto& actions : order.actions)
      for (const PipelineAction& action : actions) {
        const bool is_output = action.kind == forward;
        const int to = is_output ? action.stage + 1 : action.stage - 1;
        if (action.kind == backward_weight || to < 0 || to == order.stages()) continue;
        const auto rank_of = [&](int stage) {
          return order.rank_of_stage[static_cast<std::size_t>(stage)];
        };
        if (rank_of(to) == rank_of(action.stage)) continue;
        const EndedFirst ended(order, action);
        int in_use = 1;
        for (int other = 0; other < order.microbatches; ++other) {
          const bool is_taken = is_output ? ended.has(action.stage, forward, other)
                                          : ended.has(action.stage, backward, other) ||
                                                ended.has(action.stage, backward_input, other);
          in_use += is_taken && !ended.has_last(to, other) ? 1 : 0;
        }
        int& known =
            (is_output ? most.outputs
                       : most.gradients)[static_cast<std::size_t>(std::min(action.stage, to))];
        known = std::max(known, in_use);
      }
    const PipelineSlots slots = slots_of(order);
    EXPECT_EQ(slots.outputs, most.outputs) << seed;
    EXPECT_EQ(slots.gradients, most.gradients) << seed;
  }
}

}  // namespace
}  // namespace lockstep::parallel::simulate_order_test
