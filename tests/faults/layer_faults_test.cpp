// A rank that is killed or stopped inside of a layer that is cut: the others name it, and the layer
// in which they waited for it.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/layers.h"
#include "tests/faults/forked_ranks.h"

namespace lockstep::faults::layer_faults_test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

struct Harm {
  int signal;
  bool in_backward;
  Fault fault;        // What the other ranks get,
  std::string layer;  // and where.
};

const std::vector<Harm> harms = {
    {SIGKILL, false, Fault::peer_lost, "out (reduce_from_parallel_region)"},
    {SIGKILL, true, Fault::peer_lost, "in (copy_to_parallel_region) backward"},
    {SIGSTOP, false, Fault::timeout, "out (reduce_from_parallel_region)"},
    {SIGSTOP, true, Fault::timeout, "in (copy_to_parallel_region) backward"},
};

// The steady clock is the same for all processes of a host.
void write(const fs::path& file, std::int64_t number) {
  std::ofstream(file.string() + ".part") << number << std::endl;
  fs::rename(file.string() + ".part", file);
}

std::int64_t read(const fs::path& file) {
  std::int64_t number = 0;
  for (const auto begin = Clock::now(); !fs::exists(file) && seconds_since(begin) < 20;)
    std::this_thread::sleep_for(1ms);
  std::ifstream(file) >> number;
  return number;
}

// Two layers, between which a rank may be harmed.
void train(const ProcessGroup& world, const std::function<void()>& between, bool in_backward) {
  nn::Linear in(8, 12), out(12, 8);
  in->parallelize({ColwiseParallel(), world, "in"});
  out->parallelize({RowwiseParallel(), world, "out"});
  for (int step = 0;; ++step) {
    const at::Tensor hidden = in(at::ones({4, 8}).set_requires_grad(true));
    if (step == 3 && in_backward) hidden.register_hook([&](const at::Tensor&) { between(); });
    if (step == 3 && !in_backward) between();
    out(hidden.relu()).sum().backward();
  }
}

void live(const Harm& harm, const test::Rank& rank) {
  at::set_num_threads(1);
  const auto world = init_process_group({.timeout = 1s});
  const fs::path time = rank.scratch / "time";
  const auto harmed = [&] {
    if (world.rank() != 1) return;
    write(rank.scratch / "pid", ::getpid());
    write(time, Clock::now().time_since_epoch().count());
    ::raise(harm.signal);
  };
  try {
    train(world, harmed, harm.in_backward);
  } catch (const Error& error) {
    const double seconds = seconds_since(Clock::time_point(Clock::duration(read(time))));
    const std::string text = error.what();
    EXPECT_EQ(error.fault(), harm.fault) << text;
    EXPECT_NE(text.find("in " + harm.layer + ": all_reduce #"), text.npos) << text;
    EXPECT_NE(text.find("rank 1"), text.npos) << text;
    if (harm.signal == SIGKILL)
      EXPECT_EQ(error.failure().value().rank, 1) << text;
    else
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << text;
    EXPECT_LT(seconds, 3) << text;
  }
  // The stopped rank lives until both others have their Errors.
  if (world.rank() == 2) return write(rank.scratch / "done", 1);
  read(rank.scratch / "done");
  ::kill(static_cast<pid_t>(read(rank.scratch / "pid")), SIGKILL);
}

TEST(LayerFaults, ARankThatIsKilledOrStoppedInALayerIsNamedWithTheLayer) {
  for (const Harm& harm : harms) {
    SCOPED_TRACE("signal " + std::to_string(harm.signal) + " before " + harm.layer);
    const auto exits = test::fork_ranks(
        3, [&](const test::Rank& rank) { live(harm, rank); }, 40s);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (const int survivor : {0, 2})
      EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
          << exits[static_cast<std::size_t>(survivor)].output;
  }
}

}  // namespace
}  // namespace lockstep::faults::layer_faults_test
