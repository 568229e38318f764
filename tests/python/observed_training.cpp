// Trains a small model under `lockstep run`, for observed_training_test.py:
//   observed_training FOLDER STEPS [--kill STEP | --forget]
// FOLDER gets the event file and run.json of a RunLog. Rank 1 is slow before each forward(), and
// with --kill is killed in that step. With --forget, it ignores the timeline.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/randn.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/job/step_times.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/toolkit/run_log/run_log.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto slowness = 5ms;

struct Net : torch::nn::Module {
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(16, 1))};

  at::Tensor forward(const at::Tensor& x) { return layer(x); }
};

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder = argv[1];
  const int steps = std::stoi(argv[2]);
  const int killed_in = argc > 4 ? std::stoi(argv[4]) : -1;
  // 0.5 s after the kill, the launcher sends SIGTERM to a rank that has not noticed it yet.
  if (killed_in >= 0) ::signal(SIGTERM, SIG_IGN);
  const bool forgets = argc == 4 && std::string_view(std::getenv("RANK")) == "1";
  if (forgets) ::unsetenv("LOCKSTEP_TIMELINE_DIR");
  auto world = lockstep::init_process_group();
  const auto net = std::make_shared<Net>();
  lockstep::DistributedDataParallel ddp(net, world);
  lockstep::SGD sgd(net->parameters(), 0.01);
  lockstep::RunLog log(world, {.tensorboard = folder / "runs",
                               .json = folder / "run.json",
                               .options = {{"batch_size", "4"}},
                               .interval = 5ms});
  for (int i = 0; i < steps; ++i) {
    const auto step = log.step(/*samples=*/4);
    at::Tensor input;
    {
      const lockstep::InPhase data(lockstep::StepPhase::data);
      input = at::randn({4, 16});
      if (world.rank() == 1) std::this_thread::sleep_for(slowness);
    }
    if (world.rank() == 1 && i == killed_in) ::kill(::getpid(), SIGKILL);
    sgd.zero_grad();
    ddp(input).sum().backward();
    sgd.step();
    log.scalar("number", 10.0 * world.rank() + i);
    if (i == 0) log.text("note", "begins **here**");
    if (i == 0) log.histogram("values", at::randn({1000}));
  }
  lockstep::destroy_process_group(world);
}
