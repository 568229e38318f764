// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/microbatch_sums.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <set>

#include "lockstep/base/memory.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::size_t slice_bytes(at::ScalarType dtype, const NamedTensors& parameters, int ranks) {
  std::size_t bytes = 0;
  for (const auto& [name, parameter] : parameters)
    if (parameter.scalar_type() == dtype) bytes += padded(parameter.nbytes());
  const auto parts = static_cast<std::size_t>(ranks);
  return padded((bytes + parts - 1) / parts);
}

}  // namespace

MicrobatchTree::MicrobatchTree(int microbatches, int ranks)
    : microbatches_(microbatches), ranks_(ranks) {
  while (exchanged_ % ranks != 0) exchanged_ = next(exchanged_);
}

int MicrobatchTree::next(int modulus) const {
  int factor = 2;
  while ((microbatches_ / modulus) % factor != 0) ++factor;
  return modulus * factor;
}

std::size_t MicrobatchTree::slots() const {
  std::size_t most = 0;
  for (const Step& step : steps(0)) most = std::max(most, step.slot);
  return most + 1;
}

std::vector<MicrobatchTree::Step> MicrobatchTree::steps(int rank) const {
  std::vector<Step> steps;
  const auto own_nodes = static_cast<std::size_t>(own());
  for (std::size_t node = 0; node < own_nodes; ++node)
    add_steps(rank + static_cast<int>(node) * ranks_, exchanged_, node, own_nodes, steps);
  return steps;
}

// A child of several microbatches is first summed in the slot `spare`.
void MicrobatchTree::add_steps(int first, int modulus, std::size_t slot, std::size_t spare,
                               std::vector<Step>& steps) const {
  if (modulus == microbatches_) return steps.push_back({first, slot, /*adds=*/false, {}});
  const int finer = next(modulus);
  add_steps(first, finer, slot, spare, steps);
  for (int child = first + modulus; child < first + finer; child += modulus) {
    if (finer == microbatches_) {
      steps.push_back({child, slot, /*adds=*/true, {}});
    } else {
      add_steps(child, finer, spare, spare + 1, steps);
      steps.back().merges.emplace_back(slot, spare);
    }
  }
}

std::vector<MicrobatchTree::Merge> MicrobatchTree::merges() const {
  std::vector<Merge> merges;
  add_merges(0, 1, merges);
  return merges;
}

void MicrobatchTree::add_merges(int first, int modulus, std::vector<Merge>& merges) const {
  if (modulus == exchanged_) return;
  const int finer = next(modulus);
  add_merges(first, finer, merges);
  for (int child = first + modulus; child < first + finer; child += modulus) {
    add_merges(child, finer, merges);
    merges.emplace_back(first, child);
  }
}

MicrobatchSums::MicrobatchSums(const NamedTensors& parameters, const MicrobatchTree& tree,
                               const ProcessGroup& group)
    : tree_(tree),
      group_(group),
      merges_(tree.merges()),
      places_(tree.slots(), std::vector<at::Tensor>(parameters.size())) {
  std::set<at::ScalarType> done;
  for (const auto& [name, parameter] : parameters)
    if (done.insert(parameter.scalar_type()).second)
      fill_region(parameter.scalar_type(), parameters);
}

std::vector<at::Tensor> MicrobatchSums::memory() const {
  std::vector<at::Tensor> memory;
  for (const Region& region : regions_) {
    memory.insert(memory.end(), region.slots.begin(), region.slots.end());
    if (region.received.defined()) memory.push_back(region.received);
  }
  return memory;
}

std::size_t MicrobatchSums::bytes_for(const NamedTensors& parameters, const MicrobatchTree& tree,
                                      int ranks) {
  std::size_t bytes = 0;
  std::set<at::ScalarType> done;
  for (const auto& [name, parameter] : parameters) {
    if (!done.insert(parameter.scalar_type()).second) continue;
    const std::size_t slice = slice_bytes(parameter.scalar_type(), parameters, ranks);
    const auto slices = tree.slots() * static_cast<std::size_t>(ranks);
    bytes += slice * (slices + (ranks > 1 ? static_cast<std::size_t>(tree.exchanged()) : 0));
  }
  return bytes;
}

void MicrobatchSums::fill_region(at::ScalarType dtype, const NamedTensors& parameters) {
  const std::size_t slice = slice_bytes(dtype, parameters, group_.size());
  const auto elements = static_cast<std::int64_t>(slice / c10::elementSize(dtype));
  const std::size_t bytes = slice * static_cast<std::size_t>(group_.size());
  const auto own = static_cast<std::size_t>(tree_.own());
  const RegisteredMemory memory = group_.allocate(bytes * own);
  Region region{.label = std::string("sums over microbatches (") + c10::toString(dtype) + ")",
                .slots = {},
                .received = {}};
  for (std::size_t slot = 0; slot < tree_.slots(); ++slot) {
    region.slots.push_back(
        slot < own ? view_of(memory, slot * bytes, {elements * group_.size()}, {1}, dtype)
                   : at::empty({elements * group_.size()}, dtype));
    place(dtype, parameters, slot, region.slots.back());
  }
  if (group_.size() > 1) region.received = at::empty({tree_.exchanged(), elements}, dtype);
  regions_.push_back(std::move(region));
}

void MicrobatchSums::place(at::ScalarType dtype, const NamedTensors& parameters, std::size_t slot,
                           const at::Tensor& flat) {
  flat.zero_();  // Gaps between gradients are summed, too.
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].second;
    if (parameter.scalar_type() != dtype) continue;
    const at::Tensor view = flat.as_strided(parameter.sizes(), dense_strides(parameter), begin);
    places_[slot][i] =
        view.variable_data();  // No view: optimizers detach_() gradients that they zero.
    begin += static_cast<std::int64_t>(padded(parameter.nbytes()) / parameter.element_size());
  }
}

// Adds zeros, as in the sum of two nodes: -0 becomes 0.
bool MicrobatchSums::take(const MicrobatchTree::Step& step, std::size_t index,
                          const at::Tensor& gradient) const {
  const at::Tensor& place = places_[step.slot][index];
  if (gradient.defined())
    return step.adds ? parallel::checked_add(place, gradient)
                     : parallel::scaled_copy(place, gradient, 1);
  step.adds ? place.add_(0) : place.zero_();
  return true;
}

void MicrobatchSums::merge(const MicrobatchTree::Step& step) const {
  for (const auto& [to, from] : step.merges)
    for (const Region& region : regions_) region.slots[to].add_(region.slots[from]);
}

void MicrobatchSums::finish(double factor) const {
  for (const Region& region : regions_) finish(region, factor);
}

void MicrobatchSums::finish(const Region& region, double factor) const {
  if (group_.size() == 1) {
    parallel::scaled_copy(region.slots[0], region.slots[0],
                          factor);  // mul_() would also round the factor.
    return;
  }
  exchange(region);
  for (const auto& [to, from] : merges_) node(region, to).add_(node(region, from));
  const at::Tensor sum = node(region, 0);
  parallel::scaled_copy(sum, sum, factor);
  group_.all_gather(movable(sum), movable(region.slots[0]), {}, {.label = region.label});
}

// Nodes j of all ranks are neighbours.
void MicrobatchSums::exchange(const Region& region) const {
  for (std::int64_t j = 0; j < tree_.own(); ++j) {
    const at::Tensor received = region.received.narrow(0, j * group_.size(), group_.size());
    group_.all_to_all(movable(region.slots[static_cast<std::size_t>(j)]), movable(received), {}, {},
                      {.label = region.label});
  }
}

at::Tensor MicrobatchSums::node(const Region& region, std::size_t index) const {
  return region.received.select(0, static_cast<std::int64_t>(index));
}

}  // namespace lockstep
