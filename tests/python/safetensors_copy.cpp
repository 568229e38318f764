// Loads a safetensors file, saves the loaded tensors, and prints their digest: IN OUT.

// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/tensor/named_tensors.h"

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const lockstep::Safetensors file = lockstep::load_safetensors(argv[1]);
  lockstep::save_safetensors(argv[2], file.tensors, file.metadata);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.push_back(tensor);
  std::cout << lockstep::sha256(tensors) << '\n';
}
