// The division of shared parameters into slices, of which each rank steps one.
//
// Each large parameter is a region. All small ones of a type form one, each at a new cache line.
// Each rank has a slice of every region; slices share no cache line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::parallel {

struct SliceLayout {
  struct Region {
    std::vector<std::size_t> parameters;
    at::ScalarType type;
    std::vector<std::int64_t> bounds;  // Starts of slices, and the last end, in elements.

    std::int64_t elements() const { return bounds.back(); }
  };

  struct Home {
    std::size_t region = 0;
    std::int64_t begin = 0;
  };

  // Reads no values of `parameters`, which are dense. Regions of small ones are padded.
  SliceLayout(const std::vector<at::Tensor>& parameters, int slices);

  // In slice order, not empty. `owner` is the slice.
  std::vector<Shard> shards_of(std::size_t parameter) const;

  std::vector<Region> regions;
  std::vector<Home> homes;           // Indexed by parameter.
  std::vector<std::int64_t> counts;  // Elements, indexed by parameter.
};

}  // namespace lockstep::parallel
