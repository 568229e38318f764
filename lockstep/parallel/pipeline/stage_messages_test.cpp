// Runs orders of actions on threads as ranks, with filled tensors instead of layers' results.
// Thousands of orders take seconds, also under ThreadSanitizer.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/stage_messages.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "tests/rigs/random_pipeline_order.h"

namespace lockstep::parallel::stage_messages_test {
namespace {

using namespace std::chrono_literals;

constexpr int steps = 3;

// Shapes differ between microbatches. In the last step half of them are too large for their slots.
Parcel parcel_of(const Route& route, int step) {
  const std::int64_t rows =
      1 + (route.microbatch + step) % 3 + (step + 1 == steps && route.microbatch % 2 == 0 ? 40 : 0);
  const double value = route.microbatch + 10.0 * route.boundary + 1000.0 * step +
                       (route.way == Way::gradient ? 10000.0 : 0.0);
  return {.tensors = {at::full({rows, 5}, value, at::kFloat), at::Tensor(),
                      at::full({rows}, value + 0.5, at::kDouble)},
          .needs_gradient = {true, false, false},
          .structure = "structure " + std::to_string(value)};
}

// ThreadSanitizer does not check LibTorch's copies into slots. This detects values that are
// overwritten too early.
template <class T>
bool all_are(const at::Tensor& tensor, T value) {
  const T* const begin = tensor.const_data_ptr<T>();
  return std::all_of(begin, begin + tensor.numel(), [&](T each) { return each == value; });
}

void expect_intact(const Parcel& parcel, const Route& route, int step) {
  const Parcel expected = parcel_of(route, step);
  ASSERT_EQ(parcel.tensors.size(), 3U);
  ASSERT_EQ(parcel.tensors[0].sizes(), expected.tensors[0].sizes());
  EXPECT_TRUE(all_are(parcel.tensors[0], *expected.tensors[0].const_data_ptr<float>()))
      << expected.structure;
  EXPECT_FALSE(parcel.tensors[1].defined());
  ASSERT_EQ(parcel.tensors[2].sizes(), expected.tensors[2].sizes());
  EXPECT_TRUE(all_are(parcel.tensors[2], *expected.tensors[2].const_data_ptr<double>()))
      << expected.structure;
  EXPECT_EQ(parcel.needs_gradient, expected.needs_gradient);
  EXPECT_EQ(parcel.structure, expected.structure);
}

// Like stages, keeps received values until the end of backward.
class RankWithoutLayers {
 public:
  RankWithoutLayers(const ProcessGroup& group, const PipelineOrder& order)
      : messages_(group, order),
        ranks_(order.ranks()),
        last_stage_(order.stages() - 1),
        actions_(order.actions[static_cast<std::size_t>(group.rank())]) {}

  void run_step(int step) {
    for (const PipelineAction& action : actions_) run(action, step);
    EXPECT_TRUE(kept_.empty());
    double sum = 0;
    for (const StepReport& report : messages_.end_step({.loss = static_cast<double>(step)}))
      sum += report.loss;
    EXPECT_EQ(sum, step * ranks_);
  }

  void run_forwards(int step) {
    std::vector<PipelineAction> forwards = actions_;
    std::erase_if(forwards, [](const PipelineAction& action) {
      return action.kind != PipelineActionKind::forward;
    });
    std::ranges::sort(forwards, {}, [](const PipelineAction& action) {
      return std::pair(action.stage, action.microbatch);
    });
    for (const PipelineAction& action : forwards) {
      run(action, step, /*in_slots=*/false);
      check_and_drop(action, step);
    }
    messages_.end_step({});
  }

 private:
  void run(const PipelineAction& action, int step, bool in_slots = true) {
    const auto& [stage, kind, microbatch] = action;
    if (kind == PipelineActionKind::forward) {
      if (stage > 0) receive({Way::output, stage - 1, microbatch}, action);
      if (stage < last_stage_) send({Way::output, stage, microbatch}, step, in_slots);
      return;
    }
    if (kind != PipelineActionKind::backward_weight && stage < last_stage_)
      receive({Way::gradient, stage, microbatch}, action);
    if (kind != PipelineActionKind::backward_input) check_and_drop(action, step);
    if (kind != PipelineActionKind::backward_weight && stage > 0)
      send({Way::gradient, stage - 1, microbatch}, step, in_slots);
  }

  void send(const Route& route, int step, bool in_slots) {
    messages_.send(route, parcel_of(route, step), in_slots);
  }
  void receive(const Route& route, const PipelineAction& action) {
    kept_[{action.stage, action.microbatch}].emplace_back(route, messages_.receive(route));
  }
  void check_and_drop(const PipelineAction& action, int step) {
    const auto found = kept_.find({action.stage, action.microbatch});
    if (found == kept_.end()) return;
    for (const auto& [route, parcel] : found->second) expect_intact(parcel, route, step);
    kept_.erase(found);
  }

  StageMessages messages_;
  const int ranks_;
  const int last_stage_;
  const std::vector<PipelineAction>& actions_;
  std::map<std::pair<int, int>, std::vector<std::pair<Route, Parcel>>> kept_;
};

TEST(StageMessages, AThousandRandomOrdersNeverStop) {
  for (std::uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PipelineOrder order = test::random_pipeline_order(seed);
    run_in_process(
        order.ranks(),
        [&](ProcessGroup& world) {
          RankWithoutLayers rank(world, order);
          for (int step = 0; step < steps; ++step) rank.run_step(step);
          rank.run_forwards(0);
        },
        20s);
  }
}

}  // namespace
}  // namespace lockstep::parallel::stage_messages_test
