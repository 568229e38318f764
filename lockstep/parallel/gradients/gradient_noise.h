// How much gradients differ between batches: the gradient noise scale, "An Empirical Model of
// Large-Batch Training" (McCandlish et al. 2018), appendix A.1.
//
// Squared norms of gradients of a small and of a large batch give unbiased estimates of the squared
// norm of the true gradient and of the trace of the covariance of one sample's gradient. Their
// ratio, of moving averages of both, is the batch size at which noise and gradient are equal.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class PassReports;

// The mean squared norm of gradients of batches of one size.
struct SquaredNorm {
  double mean = 0;
  double batch_size = 0;
};

class NoiseEstimate {
 public:
  // `decay`: share of the old averages.
  explicit NoiseEstimate(double decay) : decay_(decay) {}

  // Requires: small.batch_size < large.batch_size.
  void add(const SquaredNorm& small, const SquaredNorm& large);

  // Empty before the first add(), and while the estimate of the gradient is not positive.
  std::optional<double> batch_size() const;

 private:
  const double decay_;
  double weight_ = 0;    // Of what was added, in the averages.
  double gradient_ = 0;  // The moving average of the squared norm of the true gradient.
  double noise_ = 0;     // That of the trace of the covariance.
};

// What a Reducer measures for a NoiseScale: gradients as each backward() of this rank makes them,
// and the mean of all of them.
class GradientNoise {
 public:
  // `batch_size`: samples of one backward() of one rank.
  GradientNoise(double batch_size, double decay) : batch_size_(batch_size), estimate_(decay) {}

  // A gradient of the backward pass that autograd knows by this number.
  void note(const at::Tensor& gradient, int task);

  // Of this rank's gradients since forget(): the sum of squares, and the number of passes.
  double squares();
  std::int64_t passes() const { return passes_; }
  void forget();

  // All ranks' gradients were averaged: `parameters` have the mean.
  void finish(const PassReports& reports, const NamedTensors& parameters, int ranks);

  std::optional<double> batch_size() const { return estimate_.batch_size(); }

  // Whether the last mean was of a single backward(), which tells nothing.
  bool is_of_one_pass() const { return is_of_one_pass_; }

 private:
  const double batch_size_;
  NoiseEstimate estimate_;
  std::vector<at::Tensor> norms_;
  std::int64_t passes_ = 0;
  std::optional<int> task_ = {};  // The last one that was noted.
  bool is_of_one_pass_ = false;
};

}  // namespace lockstep::parallel
