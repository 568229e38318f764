// Trains a small CNN with dropout on Fashion-MNIST. Weights are equal, bit for bit, on any number
// of ranks that divides eight, also after resuming on another number.
//   lockstep run -n 4 deterministic --steps 100 --checkpoint run
//   lockstep run -n 1 deterministic --steps 200 --checkpoint run --resume auto

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "examples/checkpoints.h"
#include "examples/command_line.h"
#include "examples/models/cnn.h"

namespace {

namespace F = torch::nn::functional;
using Stack = torch::data::transforms::Stack<>;

constexpr int microbatches = 8;
constexpr int classes = 10;

struct Net : Cnn {
  Net() : Cnn(/*channels=*/1, /*size=*/28, classes) {}

  torch::Tensor forward(const torch::Tensor& images) {
    return Cnn::forward(torch::dropout(images, 0.1, is_training()));
  }
};

int run(const Options& options) {
  torch::set_num_threads(options.threads > 0 ? options.threads : 1);
  if (options.threads > 1)
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  auto net = std::make_shared<Net>();
  if (!options.load.empty()) lockstep::load_weights(*net, options.load);
  lockstep::Adam adam(net->parameters(), options.lr);
  lockstep::DeterministicDataParallel ddp(
      net, world,
      {.microbatches = microbatches, .threads = torch::get_num_threads(), .seed = options.seed});
  auto data = lockstep::IdxDataset(options.data, /*train=*/true, classes).map(Stack());
  lockstep::DistributedSampler sampler(*data.size(), world,
                                       {.seed = options.seed, .drop_last = true});

  // Here --batch-size is over all ranks.
  std::int64_t global_batch = options.batch_size.value_or(usual_batch_size);
  std::int64_t step = 0;
  lockstep::TrainingState state;
  state.add("model", ddp);
  state.add("optimizer", adam, *net);
  state.add("sampler", sampler);
  state.add("step", step);
  state.add("global_batch", global_batch);
  Checkpoints checkpoints(options, world, state);
  checkpoints.resume();

  global_batch = global_batch_of(global_batch, options.batch_size, world);
  if (global_batch % microbatches != 0)
    throw std::runtime_error("--batch-size must be a multiple of " + std::to_string(microbatches));
  if (global_batch > static_cast<std::int64_t>(*data.size()))
    throw std::runtime_error("--batch-size is more than there are samples");
  const std::size_t batch_size = share_of(global_batch, world);
  const auto loading = torch::data::DataLoaderOptions(batch_size).drop_last(true);
  auto loader = torch::data::make_data_loader(data, sampler, loading);
  const std::int64_t steps = last_step(options, step, sampler, batch_size, /*drop_last=*/true);

  const SampleLog log(options.log_samples, world.rank());
  lockstep::Progress progress(steps,
                              {.enabled = world.rank() == 0, .label = "training", .done = step});
  double loss = 0;
  for (std::int64_t epoch = sampler.epoch(); step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : *loader) {
      adam.zero_grad();
      loss = ddp.train_microbatches(step, [&](const lockstep::GlobalMicrobatch& part) {
        return F::cross_entropy(ddp(part.of(batch.data)), part.of(batch.target));
      });
      adam.step();
      ++step;
      log.write(step, sampler.consume(batch_size));
      progress.step(global_batch, loss);
      if (checkpoints.make_room(step)) return lockstep::exit_preempted;
      checkpoints.after_step(step);
      if (step == steps) break;
    }
  }
  checkpoints.finish(step);

  if (world.rank() == 0) {
    std::cout << "loss " << std::hexfloat << loss << ", sha256 " << lockstep::sha256(*net)
              << std::endl;
    if (!options.save.empty()) lockstep::save_weights(*net, options.save);
  }
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_command_line(
      argc, argv,
      "Trains a small CNN on Fashion-MNIST to the same weights on every number of ranks.\n"
      "--batch-size is that of all ranks together, and --threads is 1 when not given.",
      "fashion-mnist");
  return lockstep::record([&] { return run(options); });
}
