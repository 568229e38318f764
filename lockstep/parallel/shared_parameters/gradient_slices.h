// Sums the gradients of shared parameters on the ranks that step them.
//
// Small gradients are copied into registered memory, large ones summed in place. Across hosts, the
// ranks of a host sum the slices of their rails (host_groups.h), and each rail sums those of its
// hosts.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/shared_parameters/host_groups.h"
#include "lockstep/parallel/shared_parameters/slice_layout.h"

namespace lockstep::parallel {

struct GradientConversion {
  at::ScalarType from = at::kFloat;
  at::ScalarType to = at::kFloat;

  at::ScalarType of(at::ScalarType type) const { return type == from ? to : type; }
};

class GradientSlices {
 public:
  // By parameter; undefined where there is none.
  using Gradients = std::vector<at::Tensor>;

  // The memory of means.
  enum class Means : std::uint8_t {
    in_place,  // Large gradients: in place. Small ones: in the buffer that the next call writes.
    apart,     // In separate memory. That of a large gradient is freed once it is summed.
  };

  // Collective. Parameters are dense in CPU memory, with the same layout on all ranks. `label`
  // names the sums.
  GradientSlices(std::vector<at::Tensor> parameters, const HostGroups& groups,
                 std::string label = "mean of gradients", GradientConversion conversion = {});

  // All ranks' fragments, by parameter; never empty ranges. Owners are ranks of `groups.all`.
  const std::vector<Shard>& shards() const { return shards_; }

  // Collective: which parameters have a gradient on any rank.
  std::vector<bool> used(const Gradients& gradients) const;

  // Collective. Returns the mean gradients of this rank's fragments, in the order of shards();
  // undefined for parameters that are not `used`. A missing gradient of a used parameter counts as
  // zero.
  std::vector<at::Tensor> average(Gradients gradients, const std::vector<bool>& used,
                                  Means means) const;

  // For gradients already equal on all ranks. Not collective.
  std::vector<at::Tensor> cut(const Gradients& gradients, const std::vector<bool>& used) const;

  // Registered memory of small gradients, one tensor for each type.
  std::vector<at::Tensor> flats() const;

 private:
  // Small gradients of one type, side by side; or one large gradient, with `flat` undefined.
  struct Region {
    Counts rails = {};  // Elements of each rail's slices; a complex one counts as two.
    Counts hosts = {};  // Those of each slice in this rank's rail.
    at::Tensor flat = {};
    std::string label;
  };

  struct Slice {
    at::Tensor flat;
    std::int64_t begin = 0;
  };

  at::Tensor laid_out(std::size_t parameter, const at::Tensor& gradient, bool written) const;
  Region region_of(const SliceLayout::Region& slices) const;
  at::Tensor collect(std::size_t region, const Gradients& gradients, const std::vector<bool>& used,
                     bool written) const;
  Slice average(std::size_t region, const at::Tensor& flat, Means means) const;
  std::vector<at::Tensor> own_parts(const std::vector<Slice>& slices,
                                    const std::vector<bool>& used) const;

  const std::vector<at::Tensor> parameters_;
  const HostGroups groups_;
  const std::string label_;
  const GradientConversion conversion_;
  const SliceLayout layout_;
  std::vector<Region> regions_;  // As layout_'s.
  std::vector<Shard> shards_;
};

}  // namespace lockstep::parallel
