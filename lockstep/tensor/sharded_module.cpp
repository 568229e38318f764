// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/sharded_module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <cstddef>

#include "lockstep/comm/values.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/placed_box.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> numbers_of(const Boxes& boxes) {
  std::vector<std::int64_t> numbers{boxes.cat_dim};
  for (const Box& box : boxes.list) {
    numbers.insert(numbers.end(), box.offsets.begin(), box.offsets.end());
    numbers.insert(numbers.end(), box.sizes.begin(), box.sizes.end());
  }
  return numbers;
}

Boxes boxes_of(const std::vector<std::int64_t>& numbers, std::size_t dims) {
  Boxes boxes{.list = {}, .cat_dim = numbers.at(0)};
  for (auto next = numbers.begin() + 1; next != numbers.end(); next += 2 * dims)
    boxes.list.push_back({{next, next + dims}, {next + dims, next + 2 * dims}});
  return boxes;
}

std::vector<Boxes> boxes_of_all_ranks(const ParameterLayout& layout) {
  const std::vector<std::int64_t> mine = numbers_of(layout.boxes);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  std::vector<Boxes> all;
  for (const std::string& theirs :
       all_gather_bytes(bytes, layout.group, {.label = "gather_whole"})) {
    std::vector<std::int64_t> numbers(theirs.size() / sizeof mine[0]);
    std::copy(theirs.begin(), theirs.end(), reinterpret_cast<char*>(numbers.data()));
    all.push_back(boxes_of(numbers, layout.shape.size()));
  }
  return all;
}

NamedTensors whole(NamedTensors tensors, const Layouts& layouts) {
  for (auto& [name, tensor] : tensors)
    if (const auto layout = layouts.find(name); layout != layouts.end())
      tensor = gather_whole(tensor, layout->second);
  return tensors;
}

}  // namespace

Layouts layouts_of(const torch::nn::Module& module) {
  Layouts all;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& owner) {
    const auto* const sharded = dynamic_cast<const ShardedModule*>(&owner);
    if (sharded == nullptr) return;
    const auto own = owner.named_parameters(/*recurse=*/false);
    for (const auto& [name, layout] : sharded->layouts())
      if (own.contains(name))
        all.emplace(prefix + name, layout);  // Not if it was replaced by a tied one.
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key() + '.', *item.value());
  return all;
}

at::Tensor gather_whole(const at::Tensor& part, const ParameterLayout& layout) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = at::empty(layout.shape, part.options());
  const std::vector<Boxes> boxes = boxes_of_all_ranks(layout);
  const std::vector<at::Tensor> parts =
      all_gather_uneven(part.detach().reshape(-1), layout.group, {.label = "gather_whole"});
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    for (const PlacedBox& box : place(layout.shape, boxes[rank], 0, parts[rank].numel()))
      view_in_whole(whole, box.box).copy_(view_in_data(parts[rank], box));
  return whole;
}

NamedTensors whole_parameters(const torch::nn::Module& module) {
  return whole(named_parameters(module), layouts_of(module));
}

NamedTensors whole_tensors(const torch::nn::Module& module) {
  return whole(named_tensors(module), layouts_of(module));
}

}  // namespace lockstep
