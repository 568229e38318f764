// Our side of ddp_test.py: a few steps of SGD with momentum from given weights on given data.
//   ddp_train WEIGHTS DATA STEPS BATCH RESULT, under a launcher

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>

#include <cstdlib>
#include <iostream>

#include "examples/models/cnn.h"

namespace {

// The loss of each step on each rank, [steps, world_size].
torch::Tensor train(Cnn& net, const lockstep::NamedTensors& data, std::size_t steps,
                    std::size_t batch_size, const lockstep::ProcessGroup& world) {
  const torch::Tensor& images = data.at(0).second;
  const torch::Tensor& targets = data.at(1).second;
  lockstep::DistributedDataParallel ddp(std::static_pointer_cast<Cnn>(net.shared_from_this()),
                                        world);
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(images.size(0)), world,
                                       {.seed = 5});
  sampler.reset();
  std::vector<torch::Tensor> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto drawn = sampler.next(batch_size).value();
    const auto indices =
        torch::tensor(std::vector<std::int64_t>(drawn.begin(), drawn.end()), torch::kLong);
    sgd.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(ddp(images.index_select(0, indices)),
                                                           targets.index_select(0, indices));
    loss.backward();
    sgd.step();
    losses.push_back(lockstep::all_gather(loss.detach(), world));
  }
  return torch::stack(losses);
}

void run(char** arguments) {
  torch::set_num_threads(1);
  auto world = lockstep::init_process_group();
  auto net = std::make_shared<Cnn>(/*channels=*/1, /*size=*/8, /*classes=*/10);
  if (world.rank() == 0) lockstep::load_weights(*net, arguments[1]);  // The others get them by DDP.
  const auto data = lockstep::load_safetensors(arguments[2]).tensors;
  const auto losses = train(*net, data, std::strtoul(arguments[3], nullptr, 10),
                            std::strtoul(arguments[4], nullptr, 10), world);
  if (world.rank() == 0) {
    lockstep::NamedTensors result = lockstep::named_parameters(*net);
    result.emplace_back("losses", losses);
    lockstep::save_safetensors(arguments[5], result);
  }
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 64;
  try {
    run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
