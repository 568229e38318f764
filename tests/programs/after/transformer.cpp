// Classifies sequences by a transformer: gradients of two half batches are added up, the rate falls
// each epoch, and training ends when the accuracy on other sequences no longer rises.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

struct Classifier : torch::nn::Module {
  torch::nn::Embedding words{register_module("words", torch::nn::Embedding(12, 16))};
  torch::nn::TransformerEncoder encoder{register_module(
      "encoder",
      torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
          torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0), 2)))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(16, 2))};

  // The scores of [samples, words].
  torch::Tensor forward(const torch::Tensor& x) {
    return out(encoder(words(x).transpose(0, 1)).mean(0));
  }
};

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  torch::Tensor texts = torch::randint(12, {300, 8}, torch::kLong);
  torch::Tensor labels = (texts == 3).any(1).to(torch::kLong);  // Has the text the word 3?

  auto model = std::make_shared<Classifier>();
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::AdamW adamw(model->parameters(), 5e-3);
  torch::optim::StepLR schedule(adamw, /*step_size=*/1, /*gamma=*/0.9);
  double best = 0;
  for (int epoch = 0, patience = 2; epoch < 8 && patience > 0; ++epoch) {
    model->train();
    for (int begin = 0; begin < 240; begin += 48) {
      adamw.zero_grad();
      for (int half = begin; half < begin + 48; half += 24) {
        const torch::Tensor x = texts.slice(0, half + world.rank(), half + 24, world.size());
        const torch::Tensor y = labels.slice(0, half + world.rank(), half + 24, world.size());
        const auto no_sync = ddp.no_sync(half == begin);  // Only the second half communicates.
        (torch::cross_entropy_loss(ddp(x), y) / 2).backward();
      }
      adamw.step();
    }
    schedule.step();

    model->eval();
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = texts.slice(0, 240 + world.rank(), 300, world.size());
    const torch::Tensor y = labels.slice(0, 240 + world.rank(), 300, world.size());
    torch::Tensor right = (model->forward(x).argmax(1) == y).sum();
    lockstep::all_reduce(right, world);
    const double accuracy = right.item<double>() / 60;
    if (world.rank() == 0) std::cout << "epoch " << epoch << ": accuracy " << accuracy << std::endl;
    --patience;
    if (accuracy > best) {
      best = accuracy;
      patience = 2;
      if (world.rank() == 0) torch::save(model, "transformer.pt");
    }
  }
  if (world.rank() == 0) std::cout << "best accuracy " << best << std::endl;
  lockstep::destroy_process_group(world);
  return 0;
}
