// Loads weights into a model of examples/ and prints each tensor's name and digest: MODEL FILE.

// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>
#include <string>

#include "examples/models/efficientnet.h"
#include "examples/models/gpt.h"
#include "examples/models/names.h"
#include "examples/models/resnet.h"
#include "examples/models/vit.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/tensor/named_tensors.h"

namespace {

std::shared_ptr<torch::nn::Module> make(const std::string& model) {
  if (model == "resnet18") return resnet18().ptr();
  if (model == "efficientnet_b0") return efficientnet_b(0).ptr();
  if (model == "vit")
    return std::make_shared<Vit>(VitOptions{
        .image = 8, .patch = 4, .layers = 2, .heads = 2, .width = 16, .hidden = 32, .classes = 10});
  return std::make_shared<Gpt>(
      GptOptions{.vocabulary = 50, .block_size = 12, .layers = 2, .heads = 2, .width = 16});
}

lockstep::NameTable names_for(const std::string& model) {
  if (model == "gpt2") return hugging_face_gpt2_names();
  if (model == "nanogpt") return nanogpt_names();
  if (model == "vit") return torchvision_vit_names();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const auto net = make(argv[1]);
  try {
    lockstep::load_weights(*net, argv[2], names_for(argv[1]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  for (const auto& [name, tensor] : lockstep::named_tensors(*net))
    std::cout << name << ' ' << lockstep::sha256({tensor}) << '\n';
}
