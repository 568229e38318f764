// The gradients of shared parameters on their way to the ranks that step them.
//
// Each rank sums and steps its slice: one part of every large gradient, and one part of all small
// ones, which are copied side by side into registered memory. What of one parameter lies in one
// rank's slice is a fragment. A large gradient is summed where autograd has made it, in registered
// memory if GradientPool had room for it, each rank its own part: nothing else is written, and
// nothing is gathered afterwards.
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
#include "lockstep/optim/shard.h"

namespace lockstep {

class GradientSlices {
 public:
  // Collective. The parameters are dense in CPU memory and laid out alike on all ranks.
  GradientSlices(std::vector<at::Tensor> parameters, const ProcessGroup& group);

  // The fragments of all ranks, in the order of the parameters; none is empty.
  const std::vector<Shard>& shards() const { return shards_; }

  // Collective: which parameters have a gradient on any rank.
  std::vector<bool> used() const;

  // Collective: the mean over all ranks of this rank's fragments' gradients, in the order of
  // shards(); undefined for those of parameters that are not `used`. A rank without one of those
  // that are counts as zero. Gradients are undefined afterwards.
  std::vector<at::Tensor> average(const std::vector<bool>& used) const;

  // The same of gradients that are equal on all ranks already. Not collective.
  std::vector<at::Tensor> cut(const std::vector<bool>& used) const;

  // In registered memory: of each type, the small gradients side by side.
  std::vector<at::Tensor> flats() const;

 private:
  // Small gradients of one type, side by side; or one large gradient, of which `flat` is undefined.
  struct Region {
    std::vector<std::size_t> parameters;
    std::vector<std::int64_t> bounds;  // Where each rank's slice begins, and the last one ends;
    Counts counts;                     // elements of each, of a complex type pairs of reals.
    at::Tensor flat;
    std::string label;
  };

  // Where a parameter's gradient lies in its region.
  struct Home {
    std::size_t region;
    std::int64_t begin;
  };

  void add_region(std::vector<std::size_t> parameters);
  void add_shards(std::size_t parameter);
  at::Tensor collect(const Region& region, const std::vector<bool>& used, bool written) const;
  std::vector<at::Tensor> collect_all(const std::vector<bool>& used, bool written) const;
  void average(const Region& region, const at::Tensor& flat) const;
  std::vector<at::Tensor> own_parts(const std::vector<at::Tensor>& flats,
                                    const std::vector<bool>& used) const;

  const std::vector<at::Tensor> parameters_;
  const ProcessGroup group_;
  std::vector<Region> regions_;
  std::vector<Home> homes_;  // By parameter.
  std::vector<Shard> shards_;
};

}  // namespace lockstep
