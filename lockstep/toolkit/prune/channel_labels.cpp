// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_labels.h"

#include <algorithm>
#include <numeric>

namespace lockstep::prune {

LabelledDim ChannelLabels::add(std::int64_t count) {
  LabelledDim added(static_cast<std::size_t>(count));
  std::iota(added.begin(), added.end(), static_cast<Label>(parents_.size()));
  parents_.insert(parents_.end(), added.begin(), added.end());
  filters_.resize(parents_.size());
  return added;
}

Label ChannelLabels::set_of(Label label) const {
  const auto parent = [this](Label child) -> Label& {
    return parents_[static_cast<std::size_t>(child)];
  };
  while (parent(label) != label) label = parent(label) = parent(parent(label));
  return label;
}

void ChannelLabels::unite(Label one, Label other) {
  const auto [kept, joined] = std::minmax({set_of(one), set_of(other)});
  if (kept == joined) return;
  parents_[static_cast<std::size_t>(joined)] = kept;
  if (const auto reason = reasons_.extract(joined)) reasons_.emplace(kept, reason.mapped());
}

void ChannelLabels::unite(LabelledDim& dim, const LabelledDim& other) {
  if (dim.empty()) dim = other;
  if (other.empty()) return;
  if (dim.size() != other.size()) {
    pin(dim, "its channels meet others of another number");
    pin(other, "its channels meet others of another number");
    return;
  }
  for (std::size_t i = 0; i < dim.size(); ++i) unite(dim[i], other[i]);
}

void ChannelLabels::pin(const LabelledDim& dim, const std::string& reason) {
  for (const Label label : dim) reasons_.emplace(set_of(label), reason);
}

const std::string* ChannelLabels::pinned(Label label) const {
  const auto found = reasons_.find(set_of(label));
  return found == reasons_.end() ? nullptr : &found->second;
}

void ChannelLabels::mark_filters(const LabelledDim& dim) {
  for (const Label label : dim) filters_[static_cast<std::size_t>(label)] = true;
}

}  // namespace lockstep::prune
