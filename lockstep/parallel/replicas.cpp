// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicas.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/error.h"
#include "lockstep/tensor/collectives.h"

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

// Every rank's text, by rank.
std::vector<std::string> gather(const std::string& text, const ProcessGroup& group) {
  const at::Tensor lengths =
      all_gather(at::tensor(static_cast<std::int64_t>(text.size()), at::kLong), group);
  at::Tensor padded = at::zeros({lengths.max().item<std::int64_t>()}, at::kByte);
  std::copy(text.begin(), text.end(), padded.data_ptr<std::uint8_t>());
  const at::Tensor all = all_gather(padded, group);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all[rank].data_ptr()),
                       static_cast<std::size_t>(lengths[rank].item<std::int64_t>()));
  return texts;
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
  const std::vector<std::string> layouts = gather(layout_of(tensors), group);
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string& theirs = layouts[static_cast<std::size_t>(rank)];
    if (theirs != layouts[0])
      throw Error(Fault::mismatch, first_difference(layouts[0], theirs, rank));
  }
}

void broadcast_from(const NamedTensors& tensors, const ProcessGroup& group, int root) {
  for (const auto& [name, tensor] : tensors) broadcast(tensor, group, root, {.tag = name});
}

void broadcast_from_rank_zero(const NamedTensors& tensors, const ProcessGroup& group) {
  broadcast_from(tensors, group, 0);
}

}  // namespace lockstep
