// Trains a small CNN with dropout on Fashion-MNIST to the same weights, bit for bit, on any number of
// ranks that divides eight, and goes on with them on another number:
//   lockstep run -n 4 deterministic --steps 100 --save state
//   lockstep run -n 1 deterministic --steps 200 --load state
// The state is two files: `state`, the weights as safetensors, and `state.adam`.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>

#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <string>

#include "examples/command_line.h"
#include "examples/models/cnn.h"

namespace {

namespace F = torch::nn::functional;
using Stack = torch::data::transforms::Stack<>;

constexpr int pieces = 8;

struct Net : Cnn {
  Net() : Cnn(/*channels=*/1, /*size=*/28, /*classes=*/10) {}

  torch::Tensor forward(const torch::Tensor& images) {
    return Cnn::forward(torch::dropout(images, 0.1, is_training()));
  }
};

// Where the training stands: the number of the step is kept with the optimizer's state.
std::int64_t load(Net& net, lockstep::Adam& adam, const std::string& file) {
  lockstep::load_weights(net, file);
  torch::serialize::InputArchive archive;
  archive.load_from(file + ".adam");
  adam.load(archive);
  torch::Tensor step;
  archive.read("step", step);
  return step.item<std::int64_t>();
}

void save(const Net& net, const lockstep::Adam& adam, std::int64_t step, const std::string& file) {
  lockstep::save_weights(net, file);
  torch::serialize::OutputArchive archive;
  adam.save(archive);
  archive.write("step", torch::tensor(step));
  archive.save_to(file + ".adam");
}

void run(const Options& options) {
  torch::set_num_threads(options.threads > 0 ? options.threads : 1);
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  auto net = std::make_shared<Net>();
  lockstep::Adam adam(net->parameters(), options.lr);
  std::int64_t step = options.load.empty() ? 0 : load(*net, adam, options.load);
  lockstep::DistributedDataParallel ddp(net, world,
                                        {.deterministic = pieces,
                                         .deterministic_threads = torch::get_num_threads(),
                                         .deterministic_seed = options.seed});

  // Here --batch-size is of all ranks together: that of each follows from their number.
  if (options.batch_size % pieces != 0)
    throw std::runtime_error("--batch-size must be a multiple of " + std::to_string(pieces));
  const auto batch_size = static_cast<std::size_t>(options.batch_size / world.size());
  auto data = lockstep::IdxDataset(options.data, /*train=*/true).map(Stack());
  const std::int64_t in_epoch = static_cast<std::int64_t>(*data.size()) / options.batch_size;
  if (in_epoch == 0) throw std::runtime_error("--batch-size is more than there are samples");
  lockstep::DistributedSampler sampler(*data.size(), world, {.seed = options.seed});
  auto loader = torch::data::make_data_loader(data, sampler, batch_size);

  const std::int64_t steps = options.steps > 0 ? options.steps : options.epochs * in_epoch;
  lockstep::Progress progress(std::max<std::int64_t>(steps - step, 0),
                              {.enabled = world.rank() == 0, .label = "training"});
  double loss = 0;
  while (step < steps) {
    sampler.set_epoch(step / in_epoch, static_cast<std::size_t>(step % in_epoch) * batch_size);
    for (auto& batch : *loader) {
      adam.zero_grad();
      loss = ddp.train_pieces(step, [&](const lockstep::Piece& piece) {
        return F::cross_entropy(ddp(piece.of(batch.data)), piece.of(batch.target));
      });
      adam.step();
      progress.step(options.batch_size, loss);
      if (++step == steps || step % in_epoch == 0) break;  // Without the last, incomplete batch.
    }
  }

  if (world.rank() == 0) {
    std::cout << "loss " << std::hexfloat << loss << ", sha256 " << lockstep::sha256(*net)
              << std::endl;
    if (!options.save.empty()) save(*net, adam, step, options.save);
  }
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_command_line(
      argc, argv,
      "Trains a small CNN on Fashion-MNIST to the same weights on every number of ranks.\n"
      "--batch-size is that of all ranks together, --threads is 1 when not given, and --steps "
      "counts from the first one of a training that --load goes on with.",
      "fashion-mnist");
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
