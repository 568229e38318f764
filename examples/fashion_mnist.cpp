// Trains a small CNN on Fashion-MNIST:
//   lockstep run -n 2 fashion_mnist --epochs 2 --amp bf16

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include "examples/image_training.h"

int main(int argc, char** argv) {
  const Options options = read_command_line(
      argc, argv, "Trains a small CNN on Fashion-MNIST, on every rank of the job.", "fashion-mnist",
      {.devices = {"cpu", "cuda"}, .amp = true});
  const ImageShape shape{.channels = 1, .size = 28, .classes = 10};
  return lockstep::record([&] {
    return train_and_test(options, shape, [&](bool train) {
      return lockstep::IdxDataset(options.data, train, shape.classes);
    });
  });
}
