// A rank that fails in a way that docs/guide/troubleshooting.md shows: failing_training WHAT.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/process_group.h>
#include <lockstep/job/record.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/tensor/collectives.h>
#include <lockstep/train/training_state.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <memory>
#include <string>

namespace {

struct Net : torch::nn::Module {
  explicit Net(int hidden)
      : in(register_module("in", torch::nn::Linear(4, hidden))),
        out(register_module("out", torch::nn::Linear(hidden, 1))),
        head(register_module("head", torch::nn::Linear(hidden, 1))) {}

  at::Tensor forward(const at::Tensor& x, bool with_head) {
    const at::Tensor middle = in(x).relu();
    return with_head ? out(middle) + head(middle) : out(middle);
  }

  torch::nn::Linear in, out, head;
};

void train(const std::string& what) {
  lockstep::ProcessGroup world = lockstep::init_process_group();
  const bool fails = world.rank() == 1;
  world.barrier();
  if (what == "dies" && fails) ::raise(SIGKILL);
  at::Tensor mean = at::ones({what == "shape" && fails ? 3 : 4});
  lockstep::all_reduce(mean, world);

  const auto net = std::make_shared<Net>(what == "model" && fails ? 16 : 8);
  lockstep::DistributedDataParallel ddp(net, world);
  const bool is_nan = what == "nan" && fails;
  const at::Tensor batch =
      at::full({2, 4}, is_nan ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  ddp(batch, /*with_head=*/!(what == "unused" && fails)).sum().backward();

  lockstep::TrainingState state;
  state.add("model", ddp);
  lockstep::Checkpointer("checkpoints", world).save(1, state);
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record([&] { train(argc > 1 ? argv[1] : ""); });
}
