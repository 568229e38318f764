// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicas.h"

#include <c10/core/ScalarType.h>

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/bytes.h"
#include "lockstep/comm/error.h"
#include "lockstep/tensor/coalesced.h"

namespace lockstep {
namespace {

std::string layout_of_gradient(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  std::ostringstream text;
  text << ", trained, strides " << tensor.strides();
  return text.str();
}

// A line for each tensor, such as "conv1.weight Float [32, 1, 3, 3], trained, strides [9, 9, 3, 1]":
// gradients are laid out by strides, so these must be the same as well.
std::string layout_of(const NamedTensors& tensors) {
  std::ostringstream text;
  for (const auto& [name, tensor] : tensors)
    text << name << ' ' << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes()
         << layout_of_gradient(tensor) << '\n';
  return text.str();
}

std::string first_difference(const std::string& ours, const std::string& theirs, int rank) {
  std::istringstream a(ours);
  std::istringstream b(theirs);
  std::string line_a;
  std::string line_b;
  do {
    if (!std::getline(a, line_a)) line_a = "nothing more";
    if (!std::getline(b, line_b)) line_b = "nothing more";
  } while (line_a == line_b);
  return "the modules differ: rank 0 has " + line_a + ", rank " + std::to_string(rank) + " has " +
         line_b;
}

}  // namespace

void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group) {
  const std::vector<std::string> layouts =
      all_gather_bytes(layout_of(tensors), group, {.tag = "layouts of replicas"});
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string& theirs = layouts[static_cast<std::size_t>(rank)];
    if (theirs != layouts[0])
      throw Error(Fault::mismatch, first_difference(layouts[0], theirs, rank));
  }
}

void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group, int root) {
  std::string tag = "broadcast_replica";
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    tag += ' ' + name;
    values.push_back(tensor);
  }
  broadcast_coalesced(values, group, root, {.tag = tag});
}

}  // namespace lockstep
