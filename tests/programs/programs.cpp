// The programs of docs/guide/porting.md, before and after their port, in one binary: LibTorch's
// headers dominate the time to compile each.
//
//   ported_programs before regression    the original program: one process, the whole batch
//   ported_programs after regression     the ported program: a rank
//   ported_programs wrong regression     the same with a mistake that the guide warns of
//   ported_programs write_script FILE    writes the TorchScript module that one program trains
//   ported_programs difference A B       prints the largest difference between two saved modules,
//                                        in proportion to the largest weight of its tensor
//
// Programs compute in double precision here, to distinguish a wrong mean from another order of
// sums.

// SPDX-License-Identifier: Apache-2.0
// Programs are included into namespaces, so their own includes must already be included here.
#include <lockstep/lockstep.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace regression {
namespace before {
#include "tests/programs/before/regression.cpp"
}
namespace after {
#include "tests/programs/after/regression.cpp"
}
namespace wrong {
#include "tests/programs/wrong/local_stop.cpp"
}
}  // namespace regression

namespace digits {
namespace before {
#include "tests/programs/before/digits.cpp"
}
namespace after {
#include "tests/programs/after/digits.cpp"
}
}  // namespace digits

namespace by_hand {
namespace before {
#include "tests/programs/before/by_hand.cpp"
}
namespace after {
#include "tests/programs/after/by_hand.cpp"
}
}  // namespace by_hand

namespace vae {
namespace before {
#include "tests/programs/before/vae.cpp"
}
namespace after {
#include "tests/programs/after/vae.cpp"
}
}  // namespace vae

namespace dcgan {
namespace before {
#include "tests/programs/before/dcgan.cpp"
}
namespace after {
#include "tests/programs/after/dcgan.cpp"
}
}  // namespace dcgan

namespace language_model {
namespace before {
#include "tests/programs/before/language_model.cpp"
}
namespace after {
#include "tests/programs/after/language_model.cpp"
}
}  // namespace language_model

namespace lbfgs {
namespace before {
#include "tests/programs/before/lbfgs.cpp"
}
namespace after {
#include "tests/programs/after/lbfgs.cpp"
}
}  // namespace lbfgs

namespace policy {
namespace before {
#include "tests/programs/before/policy.cpp"
}
namespace after {
#include "tests/programs/after/policy.cpp"
}
}  // namespace policy

namespace script {
namespace before {
#include "tests/programs/before/script.cpp"
}
namespace after {
#include "tests/programs/after/script.cpp"
}
}  // namespace script

namespace transformer {
namespace before {
#include "tests/programs/before/transformer.cpp"
}
namespace after {
#include "tests/programs/after/transformer.cpp"
}
}  // namespace transformer

namespace {

struct Program {
  std::function<int()> before, after, wrong = {};
};

const std::map<std::string, Program> programs = {
    {"regression", {regression::before::main, regression::after::main, regression::wrong::main}},
    {"digits", {digits::before::main, digits::after::main}},
    {"by_hand", {by_hand::before::main, by_hand::after::main}},
    {"vae", {vae::before::main, vae::after::main}},
    {"dcgan", {dcgan::before::main, dcgan::after::main}},
    {"language_model", {language_model::before::main, language_model::after::main}},
    {"lbfgs", {lbfgs::before::main, lbfgs::after::main}},
    {"policy", {policy::before::main, policy::after::main}},
    {"transformer", {transformer::before::main, transformer::after::main}},
    {"script", {script::before::main, script::after::main}},
};

// The tensors of a file that torch::save() wrote, by name.
void read_tensors(torch::serialize::InputArchive& archive, const std::string& prefix,
                  std::map<std::string, torch::Tensor>& tensors) {
  for (const std::string& key : archive.keys()) {
    torch::Tensor tensor;
    torch::serialize::InputArchive inner;
    if (archive.try_read(key, tensor))
      tensors[prefix + key] = tensor;
    else if (archive.try_read(key, inner))
      read_tensors(inner, prefix + key + ".", tensors);
  }
}

std::map<std::string, torch::Tensor> tensors_in(const std::string& file) {
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  std::map<std::string, torch::Tensor> tensors;
  read_tensors(archive, "", tensors);
  if (tensors.empty()) throw std::runtime_error(file + " has no tensors");
  return tensors;
}

double difference(const std::string& a, const std::string& b) {
  const auto left = tensors_in(a), right = tensors_in(b);
  if (left.size() != right.size()) throw std::runtime_error(a + ", " + b + ": other tensors");
  double largest = 0;
  for (const auto& [name, tensor] : left) {
    const torch::Tensor other = right.at(name);
    if (tensor.equal(other)) continue;
    const auto by = [](const torch::Tensor& x) { return x.abs().max().item<double>(); };
    const double here = by(tensor - other) / by(other);
    largest = here <= largest ? largest : here;  // NaN is a difference.
  }
  return largest;
}

void write_script(const std::string& file) {
  torch::manual_seed(2);
  torch::jit::Module net("Net");
  const auto add = [&net](const std::string& name, const torch::Tensor& weights) {
    net.register_parameter(name, weights.set_requires_grad(true), /*is_buffer=*/false);
  };
  add("hidden", torch::randn({2, 16}));
  add("out", torch::randn({16, 1}) / 4);
  net.define("def forward(self, x):\n    return torch.tanh(x @ self.hidden) @ self.out\n");
  net.save(file);
}

int start(const std::string& command, const std::string& argument) {
  if (command == "write_script") {
    write_script(argument);
    return 0;
  }
  const Program& program = programs.at(argument);
  if (command == "wrong") return program.wrong();
  return command == "before" ? program.before() : program.after();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 3 && words[0] == "difference") {
      std::cout << difference(words[1], words[2]) << std::endl;
      return 0;
    }
    if (words.size() == 2) return start(words[0], words[1]);
    std::cerr << "usage: ported_programs before|after|wrong NAME, or write_script FILE, or "
                 "difference FILE FILE\n";
    return 64;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
