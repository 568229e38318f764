// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/shrink.h"
#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

using Axes = std::set<std::size_t>;  // By position in the mesh.

std::string text_of(const MeshAxis& axis) { return fmt::format("{}={}", axis.name, axis.size); }

std::string text_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes) parts.push_back(text_of(axis));
  return parts.empty() ? "no axes" : fmt::format("{}", fmt::join(parts, " x "));
}

// Ranks whose text differs from the majority's; without one, all.
std::vector<int> ranks_to_blame(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int>> by_text;
  std::vector<int> all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    by_text[texts[rank]].push_back(static_cast<int>(rank));
    all.push_back(static_cast<int>(rank));
  }
  for (const auto& [text, ranks] : by_text) {
    if (ranks.size() * 2 <= all.size()) continue;
    std::vector<int> others;
    std::set_difference(all.begin(), all.end(), ranks.begin(), ranks.end(),
                        std::back_inserter(others));
    return others;
  }
  return all;
}

// Collective.
void require_alike(const ProcessGroup& group, const std::vector<MeshAxis>& axes) {
  const auto texts = all_gather_bytes(text_of(axes), group, {.label = "DeviceMesh"});
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0])
      throw Error(Fault::mismatch,
                  fmt::format("DeviceMesh of group {}: rank 0 asks for {}, rank {} for {}",
                              group.name(), texts[0], rank, texts[rank]),
                  ranks_to_blame(texts));
}

void require_names(const std::vector<MeshAxis>& axes, const std::string& what) {
  std::set<std::string_view> seen;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    require(!axes[axis].name.empty(), [&] {
      return fmt::format("{}: axis {} of {}, of size {}, has no name", what, axis, axes.size(),
                         axes[axis].size);
    });
    require(seen.insert(axes[axis].name).second,
            [&] { return fmt::format("{}: the name '{}' is repeated", what, axes[axis].name); });
  }
}

// The largest number on overflow.
std::int64_t product_of(const std::vector<MeshAxis>& axes) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes)
    if (axis.size != -1 && __builtin_mul_overflow(product, std::int64_t{axis.size}, &product))
      return std::numeric_limits<std::int64_t>::max();
  return product;
}

// Replaces -1.
std::vector<int> sizes_of(const std::vector<MeshAxis>& axes, int ranks, const std::string& what) {
  std::vector<int> sizes;
  std::optional<std::size_t> inferred;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    sizes.push_back(axes[axis].size);
    require(sizes.back() >= 1 || sizes.back() == -1,
            [&] { return fmt::format("{}: {} is no size", what, text_of(axes[axis])); });
    if (sizes.back() != -1) continue;
    require(!inferred, [&] {
      return fmt::format("{}: {} and {}: one size at most can be inferred", what,
                         text_of(axes[*inferred]), text_of(axes[axis]));
    });
    inferred = axis;
  }
  const std::int64_t product = product_of(axes);
  if (inferred) {
    require(ranks % product == 0, [&] {
      return fmt::format(
          "{}: the group's size {} is not a multiple of {}, the product of the other sizes", what,
          ranks, product);
    });
    sizes[*inferred] = static_cast<int>(ranks / product);
  } else {
    require(product == ranks, [&] {
      return fmt::format("{}: the sizes make {} ranks, the group has {}", what, product, ranks);
    });
  }
  return sizes;
}

}  // namespace

class DeviceMesh::State {
 public:
  State(ProcessGroup group, const std::vector<MeshAxis>& axes) : group_(std::move(group)) {
    require_alike(group_, axes);
    const auto what = fmt::format("DeviceMesh {} of group {}", text_of(axes), group_.name());
    require(!axes.empty(), what);
    require_names(axes, what);
    sizes_ = sizes_of(axes, group_.size(), what);
    for (std::size_t axis = 0; axis < axes.size(); ++axis)
      coordinates_.push_back(coordinate_of(group_.rank(), axis));
    for (const MeshAxis& axis : axes) names_.push_back(axis.name);
    for (std::size_t axis = 0; axis < axes.size(); ++axis) group_of({axis});
  }

  const ProcessGroup& group() const { return group_; }
  const std::vector<std::string>& names() const { return names_; }
  int size(std::size_t axis) const { return sizes_[axis]; }
  int rank(std::size_t axis) const { return coordinates_[axis]; }

  // `rank` is one of group().
  int coordinate_of(int rank, std::size_t axis) const {
    for (std::size_t inner = sizes_.size(); --inner > axis;) rank /= sizes_[inner];
    return rank % sizes_[axis];
  }

  std::vector<MeshAxis> axes() const {
    std::vector<MeshAxis> axes;
    for (std::size_t axis = 0; axis < sizes_.size(); ++axis)
      axes.push_back({names_[axis], sizes_[axis]});
    return axes;
  }

  std::size_t axis_of(std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    require(found != names_.end(), [&] {
      return fmt::format("DeviceMesh of group {}: there is no axis '{}'; there are {}",
                         group_.name(), name, fmt::join(names_, ", "));
    });
    return static_cast<std::size_t>(found - names_.begin());
  }

  Axes axes_of(const std::vector<std::string>& names) const {
    Axes axes;
    for (const std::string& name : names)
      require(axes.insert(axis_of(name)).second, [&] {
        return fmt::format("DeviceMesh of group {}: axis '{}' is named twice", group_.name(), name);
      });
    require(!axes.empty(),
            [&] { return fmt::format("DeviceMesh of group {}: no axes", group_.name()); });
    return axes;
  }

  // Locked: two threads must not make one group twice.
  ProcessGroup group_of(const Axes& axes) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(axes);
    if (found != groups_.end()) return found->second;
    int color = 0;  // Row-major number among the other axes,
    int key = 0;    // and among these.
    std::vector<std::string_view> names;
    for (std::size_t axis = 0; axis < sizes_.size(); ++axis) {
      int& number = axes.count(axis) != 0 ? key : color;
      number = number * sizes_[axis] + coordinates_[axis];
      if (axes.count(axis) != 0) names.push_back(names_[axis]);
    }
    const std::string label = fmt::format("{}", fmt::join(names, "_"));
    return groups_.emplace(axes, group_.split(color, key, {.label = label})).first->second;
  }

 private:
  const ProcessGroup group_;
  std::vector<std::string> names_;
  std::vector<int> sizes_;
  std::vector<int> coordinates_;

  std::mutex mutex_;
  std::map<Axes, ProcessGroup> groups_;
};

DeviceMesh::DeviceMesh(const ProcessGroup& group, const std::vector<MeshAxis>& axes)
    : state_(std::make_shared<State>(group, axes)) {}

ProcessGroup DeviceMesh::operator[](std::string_view name) const {
  return state_->group_of({state_->axis_of(name)});
}

ProcessGroup DeviceMesh::operator[](std::initializer_list<std::string_view> names) const {
  return (*this)[std::vector<std::string>(names.begin(), names.end())];
}

ProcessGroup DeviceMesh::operator[](const std::vector<std::string>& names) const {
  return state_->group_of(state_->axes_of(names));
}

const ProcessGroup& DeviceMesh::group() const { return state_->group(); }
const std::vector<std::string>& DeviceMesh::names() const { return state_->names(); }
int DeviceMesh::size(std::string_view name) const { return state_->size(state_->axis_of(name)); }
int DeviceMesh::rank(std::string_view name) const { return state_->rank(state_->axis_of(name)); }

std::optional<DeviceMesh> DeviceMesh::shrink(const ProcessGroup& world,
                                             std::string_view replicas) const {
  const std::size_t axis = state_->axis_of(replicas);
  const std::vector<int> ranks = former_ranks(world, group());  // By rank of this mesh.
  std::set<int> incomplete;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank] < 0) incomplete.insert(state_->coordinate_of(static_cast<int>(rank), axis));
  std::vector<MeshAxis> axes = state_->axes();
  axes[axis].size -= static_cast<int>(incomplete.size());
  if (axes[axis].size == 0)
    throw Error(Fault::unsupported,
                fmt::format("DeviceMesh of group {}: no coordinate of axis '{}' has all of its "
                            "ranks: continue from a checkpoint",
                            group().name(), replicas));
  if (incomplete.contains(state_->rank(axis))) return std::nullopt;
  std::vector<int> kept;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (!incomplete.contains(state_->coordinate_of(static_cast<int>(rank), axis)))
      kept.push_back(ranks[rank]);
  return DeviceMesh(comm::recreate_group(group(), world, kept, {}), axes);
}

}  // namespace lockstep
