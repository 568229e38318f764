// The fragments that SharedOptimizer steps, with the means of their gradients.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::parallel {

class SteppedSlices {
 public:
  virtual ~SteppedSlices() = default;

  // The fragments of all ranks, and this rank's, in the same order.
  virtual const std::vector<Shard>& shards() const = 0;
  virtual const std::vector<at::Tensor>& fragments() const = 0;

  // In which parameters are stepped; empty for their own.
  virtual std::vector<at::ScalarType> types() const { return {}; }

  // Collective. Sets each fragment's `.grad` to the mean; undefined if no rank has a gradient.
  // Returns whether ranks have waited for each other; otherwise some may still read parameters.
  virtual bool average() = 0;

  // Whether fragments have the means of all passes so far.
  virtual bool is_averaged() const = 0;

  // By parameter: whether average() has set a gradient.
  virtual const std::vector<bool>& used() const = 0;

  // After the step: copies fragments to parameters in other memory.
  virtual void publish() {}

  // Drops the means.
  virtual void forget() = 0;

  // Into which small gradients are copied.
  virtual std::vector<at::Tensor> memory() const = 0;
};

}  // namespace lockstep::parallel
