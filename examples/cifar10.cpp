// Trains a CNN or a ViT on CIFAR-10.
//   lockstep run -n 4 cifar10 --data cifar-10-batches-bin --model vit --tp 2

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include "examples/image_training.h"

int main(int argc, char** argv) {
  const Options options = read_command_line(
      argc, argv, "Trains a small CNN or ViT on CIFAR-10, on every rank of the job.",
      "cifar-10-batches-bin", {.devices = {"cpu", "cuda"}, .models = {"cnn", "vit"}, .amp = true});
  return lockstep::record([&] {
    return train_and_test(options, {.channels = 3, .size = 32, .classes = 10}, [&](bool train) {
      return lockstep::Cifar10Dataset(options.data, train);
    });
  });
}
