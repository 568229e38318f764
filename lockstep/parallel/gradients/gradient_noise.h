// The gradient noise scale: "An Empirical Model of Large-Batch Training" (McCandlish et al. 2018),
// appendix A.1.
//
// Squared norms of gradients of a small and a large batch give two unbiased estimates. They are the
// true gradient's squared norm, and the trace of one sample gradient's covariance. The ratio of
// their moving averages is the batch size at which noise and gradient are equal.
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

struct SquaredNorm {
  double mean = 0;
  double batch_size = 0;
};

class NoiseEstimate {
 public:
  // `decay`: weight of the old averages.
  explicit NoiseEstimate(double decay) : decay_(decay) {}

  // Requires: small.batch_size < large.batch_size.
  void add(const SquaredNorm& small, const SquaredNorm& large);

  // Empty while the gradient's estimate is not positive. 0 if the noise's is not.
  std::optional<double> batch_size() const;

 private:
  // Averages start at 0: both lack the same share, which cancels in their ratio.
  const double decay_;
  double gradient_ = 0;  // Squared norm.
  double noise_ = 0;     // Trace.
};

// A mean counts if it is of several backward() calls on any ranks, finite and without older
// gradients.
class GradientNoise {
 public:
  GradientNoise(double batch_size, double decay) : batch_size_(batch_size), estimate_(decay) {}

  // Autograd's `task` has reached an output of forward().
  void note_output(int task) { tasks_of_outputs_.insert(task); }

  // `task` may be nested.
  void note(const at::Tensor& gradient, int task);

  // A parameter's first gradient since forget(), and its `.grad`. If `sum` includes older
  // gradients, the mean does not count.
  void compare(const at::Tensor& gradient, const at::Tensor& sum);

  bool has_gradients() const { return !norms_.empty(); }  // Since forget().

  void omit_pass() { is_omitted_ = true; }

  // Since forget(): this rank's sum of squares (NaN if the mean does not count), and its passes.
  double squares() const;
  std::int64_t passes() const;
  void forget();

  // `parameters` have the means.
  void finish(const PassReports& reports, const NamedTensors& parameters, int ranks);

  std::optional<double> batch_size() const { return estimate_.batch_size(); }

  // Whether the last mean was of a single backward(), which does not suffice.
  bool is_of_one_pass() const { return is_of_one_pass_; }

 private:
  const double batch_size_;
  NoiseEstimate estimate_;
  std::vector<at::Tensor> norms_;
  std::vector<at::Tensor> norms_of_firsts_;  // Compared with norms_of_sums_.
  std::vector<at::Tensor> norms_of_sums_;
  std::set<int> tasks_;             // Nested passes have several.
  std::set<int> tasks_of_outputs_;  // One per pass; empty if no output is watched.
  bool is_omitted_ = false;
  bool is_of_one_pass_ = false;
};

}  // namespace lockstep::parallel
