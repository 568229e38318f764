// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_sink.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::gradient_sink_test {
namespace {

using test::fault_of;
using Calls = std::vector<std::string>;

// Records its calls.
class RecordedCalls final : public GradientSink {
 public:
  explicit RecordedCalls(Calls& calls) : calls_(calls) {}

  void assign(const BucketAssignment& assignment) override {
    note("assign " + std::to_string(assignment.size()));
  }
  bool begin(bool early) override {
    note(early ? "begin early" : "begin");
    return early;
  }
  Taken take(std::size_t index, at::Tensor&, const at::Tensor&) override {
    note("take " + std::to_string(index));
    return Taken::fine;
  }
  Taken take_left_out(std::size_t index, at::Tensor&) override {
    note("left out " + std::to_string(index));
    return Taken::fine;
  }
  void start(std::size_t bucket) override { note("start " + std::to_string(bucket)); }
  std::optional<std::size_t> wait() override {
    note("wait");
    return {};
  }
  void finish(const PassReports& reports, double factor) override {
    note("finish " + std::to_string(reports.used_by_any(0)) + ' ' + std::to_string(factor));
  }
  void release() noexcept override { note("release"); }
  std::shared_ptr<GradientPool> pool() const override { return nullptr; }
  std::vector<RegisteredMemory> memory() const override { return {}; }
  std::chrono::nanoseconds reduce_time() const override { return {}; }

 private:
  void note(std::string call) { calls_.push_back(std::move(call)); }

  Calls& calls_;
};

struct Rig {
  explicit Rig(const ProcessGroup& group, DistributedDataParallelOptions options = {})
      : reducer({{"a", a}, {"b", b}}, std::make_unique<RecordedCalls>(calls),
                {.own = group, .given = group}, with_small_buckets(options), features) {}

  static DistributedDataParallelOptions with_small_buckets(DistributedDataParallelOptions options) {
    options.bucket_cap_mb = 1e-6;
    options.find_unused_parameters = true;
    return options;
  }

  Calls calls_of(const torch::Tensor& loss) {
    calls.clear();
    reducer.prepare(/*synchronize=*/true);
    loss.backward();
    return calls;
  }

  torch::Tensor a = torch::ones({3}, torch::requires_grad());
  torch::Tensor b = torch::ones({3}, torch::requires_grad());
  Calls calls;
  Features features{DistributedDataParallelOptions{}};
  Reducer reducer;
};

TEST(GradientSink, ReceivesEachBucketInOrder) {
  run_in_process(1, [](ProcessGroup& world) {
    Rig rig(world);
    EXPECT_EQ(rig.calls, Calls{"assign 2"});
    const torch::Tensor of_a = rig.a.sum();  // Made first, so its gradient arrives last.
    EXPECT_EQ(rig.calls_of(of_a + rig.b.sum()), (Calls{"begin early", "take 1", "start 0", "take 0",
                                                       "start 1", "wait", "finish 1 1.000000"}));
  });
}

TEST(GradientSink, ReceivesOmittedParametersAtTheEndOfAPass) {
  run_in_process(1, [](ProcessGroup& world) {
    Rig rig(world);
    EXPECT_EQ(rig.calls_of(rig.a.sum()), (Calls{"begin early", "take 0", "left out 1", "start 0",
                                                "start 1", "wait", "finish 1 1.000000"}));
  });
}

TEST(GradientSink, TakesAStaticGraphsFirstPassAtItsEnd) {
  run_in_process(1, [](ProcessGroup& world) {
    Rig rig(world, {.static_graph = true});
    const Calls first = rig.calls_of(rig.a.sum());
    EXPECT_EQ(first.front(), "begin");
    EXPECT_EQ(first.back(), "finish 1 1.000000");
    EXPECT_EQ(std::count(first.begin(), first.end(), "take 0"), 0);
    EXPECT_EQ(rig.calls_of(rig.a.sum()).at(1), "take 0");
  });
}

TEST(GradientSink, IsReleasedWhenAnExceptionEndsThePass) {
  run_in_process(1, [](ProcessGroup& world) {
    Rig rig(world);
    rig.b.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
      if (gradient.defined()) throw std::runtime_error("no");
      return gradient;
    });
    const torch::Tensor of_b = rig.b.sum();  // Made first, so its gradient arrives last.
    EXPECT_ANY_THROW(rig.calls_of(of_b + rig.a.sum()));
    EXPECT_EQ(rig.calls.back(), "release");
  });
}

TEST(GradientSink, MayBeExchangedBeforeTheFirstPass) {
  run_in_process(1, [](ProcessGroup& world) {
    Rig rig(world);
    Calls others;
    rig.reducer.set_sink(std::make_unique<RecordedCalls>(others), world);
    EXPECT_EQ(others, Calls{"assign 2"});
    EXPECT_EQ(rig.calls_of(rig.a.sum()), Calls{});
    EXPECT_EQ(others.back(), "finish 1 1.000000");
  });
}

struct TwoWeights : torch::nn::Module {
  torch::Tensor forward(bool both) { return both ? (a + b).sum() : a.sum(); }

  torch::Tensor a = register_parameter("a", torch::ones({3}));
  torch::Tensor b = register_parameter("b", torch::ones({3}));
};

TEST(GradientSink, LooksAtWhatAPassHasLeftOutOnOneRankAsOnSeveral) {
  for (const int ranks : {1, 2})
    run_in_process(ranks, [](ProcessGroup& world) {
      auto net = std::make_shared<TwoWeights>();
      DistributedDataParallel ddp(net, world, {.find_unused_parameters = true});
      {
        const auto no_sync = ddp.no_sync();
        (ddp(true) * std::numeric_limits<float>::infinity()).backward();
      }
      net->a.mutable_grad().reset();
      EXPECT_EQ(fault_of([&] { ddp(false).backward(); }), Fault::corrupt);
      ASSERT_TRUE(ddp.non_finite());
      EXPECT_EQ(ddp.non_finite()->parameter, "b");
    });
}

}  // namespace
}  // namespace lockstep::parallel::gradient_sink_test
