// The gradient noise scale: "An Empirical Model of Large-Batch Training" (McCandlish et al. 2018),
// appendix A.1.
//
// Squared norms of gradients of a small and a large batch give two unbiased estimates. They are the
// squared norm of the true gradient, and the trace of one sample gradient's covariance. The ratio
// of their moving averages is the batch size at which noise and gradient are equal.
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

  // Empty before the first add(), and while the gradient's estimate is not positive. 0 if that of
  // the noise is not positive.
  std::optional<double> batch_size() const;

 private:
  // Moving averages start at 0. Both lack the same share, which cancels in their ratio.
  const double decay_;
  double gradient_ = 0;  // The squared norm of the true gradient.
  double noise_ = 0;     // The trace of the covariance.
};

// A pass counts only if this rank's gradients and the mean of all ranks' are finite and belong to
// the same gradients.
class GradientNoise {
 public:
  GradientNoise(double batch_size, double decay) : batch_size_(batch_size), estimate_(decay) {}

  // Backward pass `task`, autograd's number, has reached an output of forward().
  void note_output(int task) { tasks_of_outputs_.insert(task); }

  // From a backward pass or a nested one.
  void note(const at::Tensor& gradient, int task);

  // The first gradient of a parameter since forget(), and its `.grad`. If `sum` includes older
  // gradients, the pass does not count.
  void compare(const at::Tensor& gradient, const at::Tensor& sum);

  bool has_gradients() const { return !norms_.empty(); }  // Since forget().

  void omit_pass() { is_omitted_ = true; }

  // Since forget(): the sum of squares of this rank's gradients (NaN if the pass does not count),
  // and the number of passes.
  double squares() const;
  std::int64_t passes() const;
  void forget();

  // `parameters` have the mean of all ranks' gradients.
  void finish(const PassReports& reports, const NamedTensors& parameters, int ranks);

  std::optional<double> batch_size() const { return estimate_.batch_size(); }

  // Whether the last mean was of a single backward(), which does not suffice.
  bool is_of_one_pass() const { return is_of_one_pass_; }

 private:
  const double batch_size_;
  NoiseEstimate estimate_;
  std::vector<at::Tensor> norms_;
  std::vector<at::Tensor> norms_of_firsts_;  // Each is compared with one of norms_of_sums_.
  std::vector<at::Tensor> norms_of_sums_;
  std::set<int> tasks_;             // Nested passes have several.
  std::set<int> tasks_of_outputs_;  // One for each pass; empty if no output is watched.
  bool is_omitted_ = false;
  bool is_of_one_pass_ = false;
};

}  // namespace lockstep::parallel
