// A rank is killed or stopped inside of a sharded layer: the others report the rank and the layer
// in which they waited for it.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "tests/faults/forked_ranks.h"
#include "tests/rigs/elastic_options.h"
#include "tests/soon.h"

namespace lockstep::faults::layer_faults_test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

using Between = std::function<at::Tensor(const at::Tensor&)>;

// A model of two parts. A rank may be killed or stopped between them.
using Model = void (*)(const ProcessGroup& world, const Between& between);

void linear_layers(const ProcessGroup& world, const Between& between) {
  nn::Linear in(8, 12), out(12, 8);
  in->parallelize({ColwiseParallel(), world, "in"});
  out->parallelize({RowwiseParallel(), world, "out"});
  out(between(in(at::ones({4, 8}).set_requires_grad(true))).relu()).sum().backward();
}

void attention(const ProcessGroup& world, const Between& between) {
  const at::Tensor x = at::ones({1, 2, 4, 8}).set_requires_grad(true);
  const auto attended = [&](const at::Tensor& q, const char* name) {
    return nn::scaled_dot_product_attention(q, q, q, {.context = world, .name = name});
  };
  attended(between(attended(x, "first")), "second").sum().backward();
}

void experts(const ProcessGroup& world, const Between& between) {
  nn::Experts first(nn::ExpertsOptions(8, 4, 3)), second(nn::ExpertsOptions(8, 4, 3));
  first->parallelize({ExpertParallel(), world, "first"});
  second->parallelize({ExpertParallel(), world, "second"});
  const at::Tensor x = at::ones({4, 8}).set_requires_grad(true);
  second(between(first(x).output)).output.sum().backward();
}

void fully_sharded(const ProcessGroup& world, const Between& between) {
  torch::nn::Sequential net(torch::nn::Linear(8, 12), torch::nn::Linear(12, 8));
  FullyShardedDataParallel fsdp(net, world);
  FullyShardedOptimizer<SGD> sgd(fsdp, net->parameters(), torch::optim::SGDOptions(0.1));
  between(fsdp(at::ones({4, 8}))).sum().backward();
  sgd.step();
}

struct Harm {
  Model model;
  int signal;
  bool in_backward;
  Fault fault;        // The Fault on the other ranks,
  std::string where;  // and the call of the layer: a regular expression.
};

const std::vector<Harm> harms = {
    {linear_layers, SIGKILL, false, Fault::peer_lost,
     "in out \\(reduce_from_parallel_region\\): all_reduce #"},
    {linear_layers, SIGKILL, true, Fault::peer_lost,
     "in in \\(copy_to_parallel_region\\) backward: all_reduce #"},
    {linear_layers, SIGSTOP, false, Fault::timeout,
     "in out \\(reduce_from_parallel_region\\): all_reduce #"},
    {linear_layers, SIGSTOP, true, Fault::timeout,
     "in in \\(copy_to_parallel_region\\) backward: all_reduce #"},
    {attention, SIGKILL, false, Fault::peer_lost, "in second \\(.*\\): all_gather #"},
    {attention, SIGKILL, true, Fault::peer_lost, "in first \\(.*\\) backward: all_gather #"},
    {attention, SIGSTOP, true, Fault::timeout, "in first \\(.*\\) backward: all_gather #"},
    {fully_sharded, SIGKILL, true, Fault::peer_lost, "in gradients of unit 1: reduce_scatter #"},
    {fully_sharded, SIGSTOP, true, Fault::timeout, "in gradients of unit 1: reduce_scatter #"},
    {experts, SIGKILL, false, Fault::peer_lost, "in second: all_gather #"},
    {experts, SIGKILL, true, Fault::peer_lost,
     "in first \\(all_to_all_rows_in_region\\) backward: all_to_all #"},
    {experts, SIGSTOP, true, Fault::timeout,
     "in first \\(all_to_all_rows_in_region\\) backward: all_to_all #"},
};

// The steady clock is the same for all processes of a host.
void write(const fs::path& file, std::int64_t number) {
  std::ofstream(file.string() + ".part") << number << std::endl;
  fs::rename(file.string() + ".part", file);
}

std::int64_t read(const fs::path& file) {
  std::int64_t number = 0;
  test::await_file(file);
  std::ifstream(file) >> number;
  return number;
}

// The world of ranks of which one will be killed, or stopped. The second needs a short timeout: all
// ranks start before, because the host may delay the start of one of them.
ProcessGroup harmed_world(const ProcessGroup& all, const test::Rank& rank, int signal,
                          std::chrono::milliseconds timeout) {
  if (signal == SIGKILL) return all;
  all.barrier();
  InitOptions options = test::elastic_options(rank).init;
  options.name = "harmed";
  options.timeout = timeout;
  return init_process_group(options);
}

void live(const Harm& harm, const test::Rank& rank) {
  at::set_num_threads(1);
  const ProcessGroup all = init_process_group();
  const ProcessGroup world = harmed_world(all, rank, harm.signal, 3s);
  const fs::path time = rank.scratch / "time";
  int step = 0;
  const auto harmed = [&] {
    if (world.rank() != 1 || step != 3) return;
    write(rank.scratch / "pid", ::getpid());
    write(time, Clock::now().time_since_epoch().count());
    ::raise(harm.signal);
  };
  const auto between = [&](const at::Tensor& hidden) {
    if (harm.in_backward)
      hidden.register_hook([&](const at::Tensor&) { harmed(); });
    else
      harmed();
    return hidden;
  };
  try {
    for (;; ++step) harm.model(world, between);
  } catch (const Error& error) {
    const double seconds = seconds_since(Clock::time_point(Clock::duration(read(time))));
    const std::string text = error.what();
    EXPECT_EQ(error.fault(), harm.fault) << text;
    EXPECT_TRUE(std::regex_search(text, std::regex(harm.where))) << text;
    EXPECT_NE(text.find("rank 1"), text.npos) << text;
    if (harm.signal == SIGKILL)
      EXPECT_EQ(error.failure().value().rank, 1) << text;
    else
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << text;
    EXPECT_LT(seconds, harm.signal == SIGKILL ? 5 : 10) << text;
  }
  // The stopped rank stays alive until both others have their Errors.
  if (world.rank() == 2) return write(rank.scratch / "done", 1);
  read(rank.scratch / "done");
  ::kill(static_cast<pid_t>(read(rank.scratch / "pid")), SIGKILL);
}

TEST(LayerFaults, ARankThatIsKilledOrStoppedInALayerIsNamedWithTheLayer) {
  for (const Harm& harm : harms) {
    SCOPED_TRACE("signal " + std::to_string(harm.signal) + " before " + harm.where);
    const auto exits = test::fork_ranks(
        3, [&](const test::Rank& rank) { live(harm, rank); }, 2min);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (const int survivor : {0, 2})
      EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
          << exits[static_cast<std::size_t>(survivor)].output;
  }
}

// --- Pipelines -----------------------------------------------------------------------------------

// Calls `harmed` in its forward(), in the backward of its output, or in that of its weight.
struct HarmedLayerImpl : torch::nn::Module {
  HarmedLayerImpl(PipelineActionKind kind, std::function<void()> harmed)
      : kind_(kind), harmed_(std::move(harmed)) {
    register_module("linear", linear_);
    if (kind_ == PipelineActionKind::backward_weight)
      linear_->weight.register_hook([this](const at::Tensor&) { harmed_(); });
  }

  torch::Tensor forward(const torch::Tensor& x) {
    if (kind_ == PipelineActionKind::forward) harmed_();
    const at::Tensor y = linear_(x);
    if (kind_ == PipelineActionKind::backward_input || kind_ == PipelineActionKind::backward)
      y.register_hook([this](const at::Tensor&) { harmed_(); });
    return y;
  }

 private:
  const PipelineActionKind kind_;
  const std::function<void()> harmed_;
  torch::nn::Linear linear_{8, 8};
};
TORCH_MODULE(HarmedLayer);

// Three stages. The second one is killed or stopped at its second microbatch of the second step.
void live_in_pipeline(PipelineActionKind kind, int signal, const test::Rank& rank) {
  at::set_num_threads(1);
  const ProcessGroup all = init_process_group();
  const ProcessGroup world = harmed_world(all, rank, signal, 3s);
  int calls = 0;
  const auto harmed = [&] {
    if (world.rank() != 1 || ++calls != 6) return;
    write(rank.scratch / "pid", ::getpid());
    ::raise(signal);
  };
  LayerList layers;
  layers.add("first", [] { return torch::nn::Linear(8, 8); });
  layers.add("second", [&] { return HarmedLayer(kind, harmed); });
  layers.add("third", [] { return torch::nn::Linear(8, 8); });
  const bool is_whole = kind == PipelineActionKind::backward;
  Pipeline pipeline(
      layers, world,
      {.schedule = is_whole ? PipelineSchedule::one_f_one_b : PipelineSchedule::zero_bubble,
       .microbatches = 4});
  const auto loss_of = [](const at::Tensor& y, const Microbatch&) { return y.sum(); };
  try {
    for (;;) pipeline.step(at::ones({8, 8}), loss_of);
  } catch (const Error& error) {
    const std::string text = error.what();
    // A hook of an output runs in both parts of a split backward.
    const std::string action = kind == PipelineActionKind::backward_input
                                   ? "1[IW][0-3]"
                                   : std::string{'1', static_cast<char>(kind), '1'};
    const std::regex place("rank 1.* was last in " + action +
                           ": (forward|backward).* of microbatch [0-3] in stage 1 \\(layer second");
    EXPECT_TRUE(std::regex_search(text, place)) << action << ": " << text;
    if (signal == SIGKILL) {
      EXPECT_EQ(error.failure().value().rank, 1) << text;
    }
  }
  if (world.rank() == 2) return write(rank.scratch / "done", 1);
  read(rank.scratch / "done");
  ::kill(static_cast<pid_t>(read(rank.scratch / "pid")), SIGKILL);
}

TEST(LayerFaults, ARankThatIsKilledOrStoppedInAPipelineIsNamedWithItsAction) {
  for (const PipelineActionKind kind :
       {PipelineActionKind::forward, PipelineActionKind::backward,
        PipelineActionKind::backward_input, PipelineActionKind::backward_weight})
    for (const int signal : {SIGKILL, SIGSTOP}) {
      SCOPED_TRACE("signal " + std::to_string(signal) + " in " + static_cast<char>(kind));
      const auto exits = test::fork_ranks(
          3, [&](const test::Rank& rank) { live_in_pipeline(kind, signal, rank); }, 2min);
      EXPECT_EQ(exits[1].signal, SIGKILL);
      for (const int survivor : {0, 2})
        EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
            << exits[static_cast<std::size_t>(survivor)].output;
    }
}

// --- The end of a pipeline's step ----------------------------------------------------------------

// Rank `lost` has finished its actions and waits in the exchange for rank `late`, which kills or
// stops it in its own last backward.
struct Ending {
  std::string part;  // The part in which the lost rank waits.
  int pp, dp;
  int lost, late;
};

const std::vector<Ending> endings = {
    {"sum of losses", 3, 1, 1, 0},
    {"sum of tied weights' gradients", 3, 1, 1, 0},
    {"means of gradients", 2, 2, 3, 2},
    {"means of gradients", 2, 2, 1, 0},
};

LayerList stages_that_end(const Ending& ending, const std::function<void()>& harmed) {
  LayerList layers;
  for (const char* const name : {"first", "second", "third"})
    layers.add(name, [&] { return HarmedLayer(PipelineActionKind::backward, harmed); });
  if (ending.part == endings[1].part)
    for (const char* const name : {"second", "third"})
      layers.tie(std::string(name) + ".linear.weight", "first.linear.weight");
  return layers;
}

void expect_named(const Error& error, const Ending& ending, int signal, int rank) {
  const std::string text = error.what();
  const std::string name = "rank " + std::to_string(ending.lost);
  const bool same_pipeline = rank % ending.dp == ending.lost % ending.dp;
  const bool same_stage = rank / ending.dp == ending.lost / ending.dp;
  if (same_pipeline) {
    const std::regex place(name + ",?( which)? was last in end of a step: " + ending.part);
    EXPECT_TRUE(std::regex_search(text, place)) << text;
  }
  // It waits for the lost rank in the same part. After a kill, the previous stage may detect this
  // first, and abort the pipeline of the late rank.
  if (same_stage && signal == SIGSTOP) {
    EXPECT_NE(text.find("end of a step: " + ending.part + ", rank"), text.npos) << text;
  }
  if (signal == SIGKILL || same_pipeline || same_stage) {
    EXPECT_NE(text.find(name), text.npos) << text;
  } else {  // It has no group with the stopped rank: it reports the rank that waits for that one.
    const std::regex place("rank " + std::to_string(ending.late) +
                           " was last in end of a step: " + ending.part);
    EXPECT_TRUE(std::regex_search(text, place)) << text;
  }
  if (signal == SIGKILL) {
    ASSERT_TRUE(error.failure()) << text;
    EXPECT_EQ(error.failure()->rank, ending.lost) << text;
  }
}

void live_to_the_end(const Ending& ending, int signal, const test::Rank& rank) {
  at::set_num_threads(1);
  // If two ranks wait for the lost one, the report of the rank in the other stage comes first.
  const bool same_stage = rank.rank / ending.dp == ending.lost / ending.dp;
  const ProcessGroup all = init_process_group();
  const ProcessGroup world = harmed_world(all, rank, signal, same_stage ? 9s : 3s);
  const DeviceMesh mesh(world, {{"pp", ending.pp}, {"dp", ending.dp}});
  if (world.rank() == ending.lost) write(rank.scratch / "pid", ::getpid());
  constexpr int microbatches = 4;
  int calls = 0;
  const auto harmed = [&] {  // In the last backward of the second step.
    const int layers_here = ending.pp == 2 && world.rank() < ending.dp ? 2 : 1;
    if (++calls != 2 * microbatches * layers_here) return;
    if (world.rank() == ending.lost) write(rank.scratch / "finished", 1);
    if (world.rank() != ending.late) return;
    const auto pid = static_cast<pid_t>(read(rank.scratch / "pid"));
    read(rank.scratch / "finished");
    std::this_thread::sleep_for(1s);  // All others now wait in the exchange.
    ::kill(pid, signal);
    if (signal == SIGKILL) std::this_thread::sleep_for(100ms);  // Others detect it first.
  };
  PipelineOptions options{.microbatches = microbatches};
  if (ending.pp == 2) options.cut = {2};
  if (ending.dp > 1) options.data_parallel = mesh["dp"];
  Pipeline pipeline(stages_that_end(ending, harmed), mesh["pp"], options);
  const auto loss_of = [](const at::Tensor& y, const Microbatch&) { return y.sum(); };
  try {
    for (;;) pipeline.step(at::ones({8, 8}), loss_of);
  } catch (const Error& error) {
    expect_named(error, ending, signal, world.rank());
  }
  write(rank.scratch / ("done" + std::to_string(world.rank())), 1);
  for (int survivor = 0; survivor < world.size(); ++survivor)
    if (survivor != ending.lost) read(rank.scratch / ("done" + std::to_string(survivor)));
  ::kill(static_cast<pid_t>(read(rank.scratch / "pid")), SIGKILL);
}

TEST(LayerFaults, ARankThatIsKilledOrStoppedAtTheEndOfAPipelinesStepIsNamed) {
  for (const Ending& ending : endings)
    for (const int signal : {SIGKILL, SIGSTOP}) {
      SCOPED_TRACE("signal " + std::to_string(signal) + " in " + ending.part);
      const auto exits = test::fork_ranks(
          ending.pp * ending.dp,
          [&](const test::Rank& rank) { live_to_the_end(ending, signal, rank); }, 2min);
      for (const test::Exit& exit : exits)
        if (exit.rank == ending.lost) {
          EXPECT_EQ(exit.signal, SIGKILL);
        } else {
          EXPECT_EQ(exit.code, 0) << exit.output;
        }
    }
}

}  // namespace
}  // namespace lockstep::faults::layer_faults_test
