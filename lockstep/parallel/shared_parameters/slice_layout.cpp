// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/slice_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/memory.h"
#include "lockstep/parallel/gradients/gradient_memory.h"

namespace lockstep::parallel {
namespace {

std::int64_t elements_of_line(at::ScalarType type) {
  return static_cast<std::int64_t>(padded(1) / c10::elementSize(type));
}

std::int64_t padded_elements(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(padded(tensor.nbytes()) / tensor.element_size());
}

std::vector<std::int64_t> bounds_of(std::int64_t elements, std::int64_t line, int slices) {
  std::vector<std::int64_t> bounds;
  for (int slice = 0; slice < slices; ++slice)
    bounds.push_back(elements / line * slice / slices * line);
  bounds.push_back(elements);
  return bounds;
}

}  // namespace

SliceLayout::SliceLayout(const std::vector<at::Tensor>& parameters, int slices)
    : homes(parameters.size()) {
  const auto add_region = [&](std::vector<std::size_t> members, std::int64_t elements) {
    const at::ScalarType type = parameters[members.front()].scalar_type();
    regions.push_back(
        {std::move(members), type, bounds_of(elements, elements_of_line(type), slices)});
  };
  std::map<at::ScalarType, std::vector<std::size_t>> small;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    counts.push_back(parameters[i].numel());
    if (!is_large_gradient(parameters[i].nbytes())) {
      small[parameters[i].scalar_type()].push_back(i);
      continue;
    }
    homes[i] = {regions.size(), 0};
    add_region({i}, parameters[i].numel());
  }
  for (auto& [type, members] : small) {
    std::int64_t elements = 0;
    for (const std::size_t i : members) {
      homes[i] = {regions.size(), elements};
      elements += padded_elements(parameters[i]);
    }
    add_region(std::move(members), elements);
  }
}

std::vector<Shard> SliceLayout::shards_of(std::size_t parameter) const {
  const auto& [region, first] = homes[parameter];
  const std::vector<std::int64_t>& bounds = regions[region].bounds;
  const std::int64_t last = first + counts[parameter];
  std::vector<Shard> shards;
  for (std::size_t slice = 0; slice + 1 < bounds.size(); ++slice) {
    const std::int64_t begin = std::max(first, bounds[slice]);
    const std::int64_t end = std::min(last, bounds[slice + 1]);
    if (begin < end)
      shards.push_back({parameter, begin - first, end - first, static_cast<int>(slice)});
  }
  return shards;
}

}  // namespace lockstep::parallel
