// Trains a small CNN with dropout on Fashion-MNIST to the same weights, bit for bit, on any number of
// ranks that divides eight, and goes on with them on another number:
//   lockstep run -n 4 deterministic --steps 100 --save state
//   lockstep run -n 1 deterministic --steps 200 --load state
// The state is two files: `state`, the weights as safetensors, and `state.adam`.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>

#include <filesystem>
#include <fstream>
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

// Where the training stands: the number of the step is kept with the optimizer's state, and the hash of
// the weights that it belongs to.
std::int64_t load(Net& net, lockstep::Adam& adam, const std::string& file) {
  lockstep::load_weights(net, file);
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(file + ".adam");
  } catch (const c10::Error&) {
    throw std::runtime_error(file + ".adam is missing or damaged");
  }
  torch::IValue step;
  torch::IValue weights;
  archive.read("step", step);
  archive.read("weights", weights);
  if (weights.toStringRef() != lockstep::sha256(net))
    throw std::runtime_error(file + ".adam does not belong to the weights in " + file);
  adam.load(archive);
  return step.toInt();
}

// Written aside first, so that a full disk leaves the state that there was.
void save(const Net& net, const lockstep::Adam& adam, std::int64_t step, const std::string& file) {
  torch::serialize::OutputArchive archive;
  adam.save(archive);
  archive.write("step", torch::IValue(step));
  archive.write("weights", torch::IValue(lockstep::sha256(net)));
  std::string bytes;
  archive.save_to([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  const std::string aside = file + ".adam.tmp";
  std::ofstream out(aside, std::ios::binary);
  if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
    std::filesystem::remove(aside);
    throw std::runtime_error("cannot write " + aside);
  }
  lockstep::save_weights(net, file);
  std::filesystem::rename(aside, file + ".adam");
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
  if (step > steps) throw std::runtime_error("the state is of a later step than --steps");
  lockstep::Progress progress(steps - step, {.enabled = world.rank() == 0, .label = "training"});
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
