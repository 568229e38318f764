// DistributedDataParallel has the same results on CUDA tensors as on the CPU.

// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/engine.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/job/step_clock.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "tests/cuda/trained.h"
#include "tests/fault_of.h"

namespace lockstep::ddp_test {
namespace {

using namespace test;

class DistributedDataParallelOnCuda : public OnStandIn {};

constexpr double small_bucket = 0.01;  // MiB: gives several buckets.

void step(Ddp& ddp, torch::optim::Optimizer& optimizer, const torch::Tensor& x,
          bool with_extra = true) {
  optimizer.zero_grad();
  ddp(x, with_extra).pow(2).mean().backward();
  optimizer.step();
}

torch::optim::SGD sgd(const Net& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST_F(DistributedDataParallelOnCuda, GivesTheBitsOfTheCpuWithAndWithoutOverlap) {
  for (const auto overlap : {std::optional<bool>(), std::optional(false), std::optional(true)})
    for (const int ranks : {1, 2})
      expect_same_on_both(ranks, [&](Place place, ProcessGroup& group, auto net) {
        Ddp ddp(net, group, {.bucket_cap_mb = small_bucket, .overlap = overlap});
        if (place == Place::cuda) {
          EXPECT_EQ(ddp.stats().is_overlapped, overlap.value_or(group.size() > 1));
        }
        auto optimizer = sgd(*net);
        for (int i = 0; i < 4; ++i)
          step(ddp, optimizer, inputs(group.rank(), i, device_of(place, group)));
      });
}

TEST_F(DistributedDataParallelOnCuda, StartsEqualAndBroadcastsBuffers) {
  expect_same_on_both(2, [](Place place, ProcessGroup& group, auto net) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.add_(group.rank());
    Ddp ddp(net, group);
    EXPECT_FLOAT_EQ(net->b->bias[0].template item<float>(), 0) << "rank 0's";
    net->norm->running_mean.fill_(group.rank() + 1);
    const torch::AutoGradMode with_gradients(true);
    ddp(inputs(group.rank(), 0, device_of(place, group)));
    EXPECT_LT(net->norm->running_mean.abs().max().template item<float>(), 1.5) << "rank 0's";
  });
}

TEST_F(DistributedDataParallelOnCuda, AccumulatesUnderNoSyncAndIntoGradientsThatAreKept) {
  for (const bool overlap : {false, true})
    expect_same_on_both(2, [&](Place place, ProcessGroup& group, auto net) {
      Ddp ddp(net, group, {.bucket_cap_mb = small_bucket, .overlap = overlap});
      for (int i = 0; i < 4; ++i) {
        const auto no_sync = ddp.no_sync(i % 2 == 0);
        ddp(inputs(group.rank(), i, device_of(place, group))).pow(2).mean().backward();
      }
      net->zero_grad(/*set_to_none=*/false);
      ddp(inputs(group.rank(), 9, device_of(place, group))).pow(2).mean().backward();
    });
}

TEST_F(DistributedDataParallelOnCuda, LeavesOutParametersThatARankOrAllHaveNotUsed) {
  for (const bool overlap : {false, true})
    expect_same_on_both(2, [&](Place place, ProcessGroup& group, auto net) {
      Ddp ddp(net, group,
              {.find_unused_parameters = true, .bucket_cap_mb = small_bucket, .overlap = overlap});
      auto optimizer = sgd(*net);
      for (int i = 0; i < 4; ++i)
        step(ddp, optimizer, inputs(group.rank(), i, device_of(place, group)),
             /*with_extra=*/i == 0 || (i == 2 && group.rank() == 1));
    });
}

TEST_F(DistributedDataParallelOnCuda, RecordsAStaticGraph) {
  for (const int ranks : {1, 2})
    expect_same_on_both(ranks, [](Place place, ProcessGroup& group, auto net) {
      Ddp ddp(net, group, {.static_graph = true, .bucket_cap_mb = small_bucket, .overlap = true});
      auto optimizer = sgd(*net);
      for (int i = 0; i < 3; ++i)
        step(ddp, optimizer, inputs(group.rank(), i, device_of(place, group)), false);
    });
}

TEST_F(DistributedDataParallelOnCuda, CompressesGradients) {
  for (const bool overlap : {false, true})
    for (const bool bfloat : {false, true})
      expect_same_on_both(2, [&](Place place, ProcessGroup& group, auto net) {
        Ddp ddp(net, group, {.bucket_cap_mb = small_bucket, .overlap = overlap});
        ddp.register_comm_hook(bfloat ? bf16_compress_hook() : fp16_compress_hook());
        auto optimizer = sgd(*net);
        for (int i = 0; i < 3; ++i)
          step(ddp, optimizer, inputs(group.rank(), i, device_of(place, group)));
      });
}

TEST_F(DistributedDataParallelOnCuda, JoinsUnevenInputs) {
  expect_same_on_both(2, [](Place place, ProcessGroup& group, auto net) {
    Ddp ddp(net, group);
    auto optimizer = sgd(*net);
    ddp.join([&] {
      for (int i = 0; i < 2 + 2 * group.rank(); ++i)
        step(ddp, optimizer, inputs(group.rank(), i, device_of(place, group)));
    });
  });
}

TEST_F(DistributedDataParallelOnCuda, AveragesOverSamples) {
  expect_same_on_both(2, [](Place place, ProcessGroup& group, auto net) {
    Ddp ddp(net, group, {.mean = GradientMean::over_samples});
    ddp.count_samples(5 + group.rank());
    ddp(inputs(group.rank(), 0, device_of(place, group))).pow(2).sum().backward();
  });
}

TEST_F(DistributedDataParallelOnCuda, NamesAGradientThatIsNotFinite) {
  for (const bool overlap : {false, true})
    for (const int ranks : {1, 2})
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        trained(Place::cuda, ranks, [&](ProcessGroup& group, auto net) {
          Ddp ddp(net, group, {.bucket_cap_mb = small_bucket, .overlap = overlap});
          const int last = group.size() - 1;
          net->extra->bias.register_hook([&, last](const torch::Tensor& gradient) {
            torch::Tensor changed = gradient.clone();
            if (group.rank() == last) changed[7] = bad;
            return changed;
          });
          std::string text;
          const auto pass = [&] {
            ddp(inputs(group.rank(), 0, local_device(group))).pow(2).mean().backward();
          };
          EXPECT_EQ(fault_of(pass, &text), Fault::corrupt);
          EXPECT_NE(text.find("the gradient of extra.bias on rank " + std::to_string(last)),
                    std::string::npos)
              << text;
          for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
        });
}

void skip_a_pass(Place place, ProcessGroup& group, const std::shared_ptr<Net>& net,
                 const Options& options) {
  Ddp ddp(net, group, options);
  auto optimizer = sgd(*net);
  for (int i = 0; i < 3; ++i) {
    torch::Tensor x = inputs(group.rank(), i, device_of(place, group));
    if (i == 1 && group.rank() == 1) x[0][0] = std::numeric_limits<float>::infinity();
    net->norm->eval();  // Its statistics would not be finite, either.
    step(ddp, optimizer, x);
    EXPECT_EQ(ddp.non_finite().has_value(), i == 1);
  }
}

TEST_F(DistributedDataParallelOnCuda, SkipsAPassThatIsNotFiniteOnAllRanks) {
  expect_same_on_both(2, [](Place place, ProcessGroup& group, const auto& net) {
    skip_a_pass(place, group, net, {.overlap = true, .non_finite = NonFinite::skip});
  });
}

TEST_F(DistributedDataParallelOnCuda, GivesTheSameBitsWhateverTimeThreadsAndStreamsTake) {
  const Chaos chaos;
  for (int i = 0; i < 10; ++i) {
    expect_same_on_both(2, [](Place place, ProcessGroup& group, const auto& net) {
      skip_a_pass(place, group, net, {.overlap = true, .non_finite = NonFinite::skip});
    });
    expect_same_on_both(2, [](Place place, ProcessGroup& group, const auto& net) {
      Ddp ddp(net, group,
              {.find_unused_parameters = true, .bucket_cap_mb = small_bucket, .overlap = true});
      auto optimizer = sgd(*net);
      for (int step_number = 0; step_number < 3; ++step_number)
        step(ddp, optimizer, inputs(group.rank(), step_number, device_of(place, group)),
             /*with_extra=*/step_number != 1 || group.rank() == 1);
    });
  }
}

// A backward() that the caller's thread leaves by an exception while autograd's thread runs it.
struct LeftPass {
  explicit LeftPass(const torch::Tensor& out) {
    out.register_hook([this](const torch::Tensor&) {
      auto end = std::shared_ptr<void>(nullptr, [this](void*) { over.set_value(); });
      torch::autograd::Engine::get_default_engine().queue_callback([end = std::move(end)] {});
      reached.set_value();
      left.get_future().wait();
    });
    const torch::Tensor here = torch::ones({}, torch::requires_grad()) * 2;
    here.register_hook([this](const torch::Tensor&) {
      reached.get_future().wait();
      throw std::runtime_error("on the caller's thread");
    });
    loss = here + out.sum().cpu();
  }

  torch::Tensor loss;
  std::promise<void> reached, left, over;
};

TEST_F(DistributedDataParallelOnCuda, CountsSamplesWhileAutogradStillHasAPassThatWasCutShort) {
  trained(Place::cuda, 1, [](ProcessGroup& group, const auto& net) {
    Ddp ddp(net, group, {.mean = GradientMean::over_samples});
    const torch::Tensor x = inputs(0, 0, local_device(group));
    ddp.count_samples(3);
    {
      LeftPass pass(ddp(x));
      EXPECT_THROW(pass.loss.backward(), std::runtime_error);
      ddp.count_samples(5);
      pass.left.set_value();
      pass.over.get_future().wait();
    }
    net->zero_grad();
    ddp(x).pow(2).sum().backward();
    const torch::Tensor mean = net->b->bias.grad().cpu();
    net->zero_grad();
    const auto no_sync = ddp.no_sync();
    ddp(x).pow(2).sum().backward();
    EXPECT_TRUE(torch::allclose(mean * 5, net->b->bias.grad().cpu()));
  });
}

TEST_F(DistributedDataParallelOnCuda, WaitsForTheDeviceOnceAPassOrNever) {
  for (const bool overlap : {false, true})
    for (const bool checks : {false, true})
      for (const int ranks : {1, 2})
        trained(Place::cuda, ranks, [&](ProcessGroup& group, auto net) {
          const at::Device device = local_device(group);
          Ddp ddp(net, group,
                  {.bucket_cap_mb = small_bucket,
                   .overlap = overlap,
                   .non_finite = checks ? NonFinite::fail : NonFinite::ignore});
          const torch::Tensor x = inputs(group.rank(), 0, device);
          for (int i = 0; i < 3; ++i) {
            const torch::Tensor loss = ddp(x).pow(2).mean();
            take_host_waits(device.index());
            loss.backward();
            EXPECT_EQ(take_host_waits(device.index()), checks ? 1 : 0) << "pass " << i;
          }
        });
}

// Autograd ends the passes of a device on its own thread.
TEST_F(DistributedDataParallelOnCuda, CountsItsStepsOnTheLoopsClock) {
  for (const int ranks : {1, 2})
    trained(Place::cuda, ranks, [&](ProcessGroup& group, auto net) {
      const StepClock::OfThread clock;
      Ddp ddp(net, group);
      for (int i = 0; i < 3; ++i)
        ddp(inputs(group.rank(), i, local_device(group))).pow(2).mean().backward();
      EXPECT_EQ(step_times().steps, 3);
      EXPECT_GT(step_times()[StepPhase::backward].count(), 0);
    });
}

TEST_F(DistributedDataParallelOnCuda, IsSteppedByOurOptimizers) {
  expect_same_on_both(2, [](Place place, ProcessGroup& group, auto net) {
    Ddp ddp(net, group);
    Adam adam(net->parameters(), 1e-2);
    for (int i = 0; i < 3; ++i) step(ddp, adam, inputs(group.rank(), i, device_of(place, group)));
  });
  expect_same_on_both(2, [](Place place, ProcessGroup& group, auto net) {
    Ddp ddp(net, group);
    ZeroRedundancyOptimizer<torch::optim::Adam> adam(net->parameters(), group,
                                                     torch::optim::AdamOptions(1e-2));
    for (int i = 0; i < 3; ++i) step(ddp, adam, inputs(group.rank(), i, device_of(place, group)));
    adam.consolidate_state_dict(0);
  });
}

// --- Streams -------------------------------------------------------------------------------------

bool is_write(const StreamEntry& entry) { return entry.kind == StreamEntry::Kind::write; }

// Entries of this many passes with their collectives. Before them, one pass has whole buckets, and
// one has new buckets.
std::vector<StreamEntry> entries_of_passes(const Options& options, int passes) {
  std::vector<StreamEntry> entries;
  StandInDevices devices;
  note_calls(devices);
  trained(
      Place::cuda, 2,
      [&](ProcessGroup& group, auto net) {
        const at::Device device = local_device(group);
        Ddp ddp(net, group, options);
        for (int i = -2; i < passes; ++i) {
          if (i == 0) take_stream_entries(device.index());
          net->zero_grad();
          ddp(inputs(group.rank(), i, device)).pow(2).mean().backward();
        }
        if (group.rank() == 0) entries = take_stream_entries(device.index());
      },
      &devices);
  return entries;
}

// Indices of the entries before `call` that wrote to its memory.
std::vector<std::size_t> writes_for(const std::vector<StreamEntry>& entries, std::size_t call) {
  std::vector<std::size_t> writes;
  const auto ours = entries[call].memory;
  for (std::size_t i = 0; i < call; ++i) {
    const auto theirs = entries[i].memory;
    if (is_write(entries[i]) && theirs.data() < ours.data() + ours.size() &&
        ours.data() < theirs.data() + theirs.size())
      writes.push_back(i);
  }
  return writes;
}

TEST_F(DistributedDataParallelOnCuda, ReducesOnTheCallersStreamWithoutOverlap) {
  auto entries = entries_of_passes({.broadcast_buffers = false, .overlap = false}, 2);
  for (const StreamEntry& entry : entries) EXPECT_EQ(entry.stream, 0);
  std::erase_if(entries, is_write);
  ASSERT_EQ(entries.size(), 2U) << "one all_reduce a pass";
  for (const StreamEntry& entry : entries) EXPECT_EQ(entry.kind, StreamEntry::Kind::call);
}

TEST_F(DistributedDataParallelOnCuda, ReducesBesideBackwardInAnOrderThatStreamsKeep) {
  const auto entries = entries_of_passes(
      {.broadcast_buffers = false, .bucket_cap_mb = small_bucket, .overlap = true}, 1);
  std::vector<std::size_t> kept;  // Waits and calls.
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!is_write(entries[i])) kept.push_back(i);
  ASSERT_GT(kept.size(), 4U) << "there are several buckets";
  ASSERT_EQ(kept.size() % 2, 1U);
  const c10::StreamId side = entries[kept.front()].stream;
  EXPECT_NE(side, 0);
  std::size_t gradients = 0;
  for (std::size_t i = 0; i + 1 < kept.size(); i += 2) {
    const StreamEntry& wait = entries[kept[i]];
    const StreamEntry& call = entries[kept[i + 1]];
    EXPECT_EQ(wait.kind, StreamEntry::Kind::wait);
    EXPECT_EQ(wait.stream, side);
    EXPECT_EQ(wait.waits_for, 0);
    EXPECT_EQ(call.kind, StreamEntry::Kind::call);
    EXPECT_EQ(call.stream, side);
    const auto writes = writes_for(entries, kept[i + 1]);
    for (const std::size_t write : writes) EXPECT_EQ(entries[write].stream, 0);
    ASSERT_FALSE(writes.empty());
    EXPECT_GT(wait.recorded_after, writes.back()) << "the bucket's last gradient is waited for";
    gradients += writes.size();
  }
  EXPECT_EQ(gradients, Net().parameters().size());
  // Finally the caller's stream waits for all of them.
  const StreamEntry& end = entries[kept.back()];
  EXPECT_EQ(end.kind, StreamEntry::Kind::wait);
  EXPECT_EQ(end.stream, 0);
  EXPECT_EQ(end.waits_for, side);
  EXPECT_GT(end.recorded_after, kept[kept.size() - 2]);
}

}  // namespace
}  // namespace lockstep::ddp_test
