// Sends the gradients of shared parameters to the ranks that step them.
//
// Each rank sums and steps its slice: one part of every large gradient, and one part of all small
// ones. Small gradients are copied side by side into registered memory. The part of one parameter
// in one rank's slice is a fragment. A large gradient is summed where it lies, which is registered
// memory if GradientPool had room for it. No gather follows.
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

namespace lockstep::parallel {

class GradientSlices {
 public:
  // By parameter; undefined where there is none.
  using Gradients = std::vector<at::Tensor>;

  // Where means lie.
  enum class Means : std::uint8_t {
    in_place,  // In the memory of large gradients, and where the next call writes small ones.
    apart,     // In memory of their own. That of a large gradient is free once it is summed.
  };

  // Collective. The parameters are dense in CPU memory, with the same layout on all ranks. `label`
  // is that of the sums.
  GradientSlices(std::vector<at::Tensor> parameters, const ProcessGroup& group,
                 std::string label = "mean of gradients");

  // The fragments of all ranks, in the order of the parameters; never empty ranges.
  const std::vector<Shard>& shards() const { return shards_; }

  // Collective: which parameters have a gradient on any rank.
  std::vector<bool> used(const Gradients& gradients) const;

  // Collective. Returns the mean over all ranks of the gradients of this rank's fragments, in the
  // order of shards(). Fragments of parameters that are not `used` are undefined. A missing
  // gradient of a used parameter counts as zero.
  std::vector<at::Tensor> average(Gradients gradients, const std::vector<bool>& used,
                                  Means means) const;

  // As average(), for gradients that are equal on all ranks already. Not collective.
  std::vector<at::Tensor> cut(const Gradients& gradients, const std::vector<bool>& used) const;

  // The small gradients in registered memory, one flat tensor for each type.
  std::vector<at::Tensor> flats() const;

 private:
  // Small gradients of one type, side by side; or one large gradient, with `flat` undefined.
  struct Region {
    std::vector<std::size_t> parameters;
    std::vector<std::int64_t> bounds;  // Begins of the ranks' slices, and the last end.
    Counts counts;                     // Elements of each slice; a complex one counts as two.
    at::Tensor flat;
    std::string label;
  };

  // Position of a parameter's gradient in its region.
  struct Home {
    std::size_t region;
    std::int64_t begin;
  };

  // A region's elements, and where in it this rank's slice begins.
  struct Slice {
    at::Tensor flat;
    std::int64_t begin = 0;
  };

  void add_region(std::vector<std::size_t> parameters);
  void add_shards(std::size_t parameter);
  at::Tensor collect(const Region& region, const Gradients& gradients,
                     const std::vector<bool>& used, bool written) const;
  Slice average(const Region& region, const at::Tensor& flat, Means means) const;
  std::vector<at::Tensor> own_parts(const std::vector<Slice>& slices,
                                    const std::vector<bool>& used) const;

  const std::vector<at::Tensor> parameters_;
  const ProcessGroup group_;
  const std::string label_;
  std::vector<Region> regions_;
  std::vector<Home> homes_;  // Indexed by parameter.
  std::vector<Shard> shards_;
};

}  // namespace lockstep::parallel
