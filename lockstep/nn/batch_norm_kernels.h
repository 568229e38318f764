// Moments of values, and parts of a batch norm over ranks that ATen lacks or computes slowly.
//
// Tensors are [N, C, ...] and packed: contiguous, or contiguous in a channels-last format.
// Thread safety: any thread, with its share of ATen's threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::nn {

struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  // Sum of squared distances from the mean.

  // Equation 2.1 of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
  // computing sample variances" (1979).
  void join(const Moments& other) {
    if (other.count == 0) return;
    const double both = count + other.count;
    const double delta = other.mean - mean;
    mean += delta * (other.count / both);
    m2 += other.m2 + delta * delta * (count * other.count / both);
    count = both;
  }
};

// A copy unless `tensor` is packed; autograd records it.
at::Tensor packed(const at::Tensor& tensor);
at::Tensor packed_like(const at::Tensor& tensor, const at::Tensor& model);

// ATen's type of per-channel tensors: float for half precision.
at::ScalarType channel_type(at::ScalarType input);

// Vectorised, with one read of the input. For [N, C] or channels last, calls ATen's
// batch_norm_update_stats, which is fast there.
std::vector<Moments> channel_moments(const at::Tensor& input);

// scale * (gradient - offset - (input - mean) * slope). `coefficients` is [4, C], contiguous,
// channel_type(): mean, offset, slope and scale.
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& coefficients);

}  // namespace lockstep::nn
