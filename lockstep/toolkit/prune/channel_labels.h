// Labels for each index of each dimension of a model's tensors. Operations unite the labels of
// indices that can only be removed together. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::prune {

using Label = std::int32_t;

// One per index; empty if unknown, as for a batch.
using LabelledDim = std::vector<Label>;

// A union-find structure (Tarjan, 1975). Pinned sets cannot be removed.
class ChannelLabels {
 public:
  LabelledDim add(std::int64_t count);

  // The representative of the set.
  Label set_of(Label label) const;

  void unite(Label one, Label other);

  // Unites two dimensions index by index; an unknown `dim` becomes `other`. Pins both if sizes
  // differ.
  void unite(LabelledDim& dim, const LabelledDim& other);

  // Excludes these channels from removal. The first reason is reported.
  void pin(const LabelledDim& dim, const std::string& reason);

  // The reason; null if not pinned.
  const std::string* pinned(Label label) const;

  // Marks channels that layers with weights compute: only their sets are pruned.
  void mark_filters(const LabelledDim& dim);
  bool is_filter(Label label) const { return filters_[static_cast<std::size_t>(label)]; }

 private:
  mutable std::vector<Label> parents_;
  std::vector<bool> filters_;
  std::map<Label, std::string> reasons_;  // By set.
};

}  // namespace lockstep::prune
