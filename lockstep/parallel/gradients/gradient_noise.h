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
#include <set>
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

  // Empty before the first add(), and while the estimate of the gradient is not positive. 0 if that
  // of the noise is not.
  std::optional<double> batch_size() const;

 private:
  // Moving averages, which begin at 0: both lack the same share, which their ratio does not show.
  const double decay_;
  double gradient_ = 0;  // The squared norm of the true gradient.
  double noise_ = 0;     // The trace of the covariance.
};

// Measures for a NoiseScale: gradients as each backward() of this rank makes them, and the mean of
// all of them. A pass counts only if both are finite, and are of the same gradients.
class GradientNoise {
 public:
  // `batch_size`: samples of one backward() of one rank.
  GradientNoise(double batch_size, double decay) : batch_size_(batch_size), estimate_(decay) {}

  // A backward pass, which autograd knows by the number `task`, has come to an output of forward().
  void note_output(int task) { tasks_of_outputs_.insert(task); }

  // A gradient of a backward pass, or of one that it nests.
  void note(const at::Tensor& gradient, int task);

  // The first gradient of a parameter since forget(), and its `.grad`, which now contains it. If
  // `.grad` contains older ones, too, the pass does not count.
  void compare(const at::Tensor& gradient, const at::Tensor& sum);

  bool has_gradients() const { return !norms_.empty(); }  // Since forget().

  // The pass does not count.
  void omit_pass() { is_omitted_ = true; }

  // This rank's gradients since forget(): the sum of squares, NaN if the pass does not count, and
  // the number of passes.
  double squares() const;
  std::int64_t passes() const;
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
  std::vector<at::Tensor> norms_of_firsts_;  // Those that were compared,
  std::vector<at::Tensor> norms_of_sums_;    // with these.
  std::set<int> tasks_;                      // Of gradients: nested passes are several.
  std::set<int> tasks_of_outputs_;           // One for each pass; empty if no output is watched.
  bool is_omitted_ = false;
  bool is_of_one_pass_ = false;
};

}  // namespace lockstep::parallel
