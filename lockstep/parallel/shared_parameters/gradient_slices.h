// Averages the gradients of shared parameters on the ranks that step them.
//
// Small gradients are copied into registered memory; large ones are usually not copied. Each host
// averages its ranks' slices; then each rail (host_groups.h) averages its hosts' slices.
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
    in_place,  // Small gradients: in the buffer that the next call writes.
    apart,     // A large gradient is freed once averaged.
  };

  // Collective. Parameters are dense, in CPU memory, with equal layouts on all ranks. `label` names
  // collectives.
  GradientSlices(std::vector<at::Tensor> parameters, const HostGroups& groups,
                 std::string label = "mean of gradients", GradientConversion conversion = {});

  // All ranks' fragments, by parameter, not empty. Owners are ranks of `groups.all`.
  const std::vector<Shard>& shards() const { return shards_; }

  // Collective: which parameters have a gradient on any rank.
  std::vector<bool> used(const Gradients& gradients) const;

  // Collective. Returns means for this rank's fragments, in the order of shards(); undefined unless
  // `used`. A missing gradient of a used parameter counts as zero.
  std::vector<at::Tensor> average(Gradients gradients, const std::vector<bool>& used,
                                  Means means) const;

  // For gradients equal on all ranks. Not collective.
  std::vector<at::Tensor> cut(const Gradients& gradients, const std::vector<bool>& used) const;

  // Registered memory of small gradients, by type.
  std::vector<at::Tensor> flats() const;

 private:
  // Small gradients of a type, side by side; or a large one, with `flat` undefined.
  struct Region {
    Counts rails = {};  // Elements of a rail's slices; complex ones count twice.
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
