// Moments of values, and two steps of a batch norm over several ranks that ATen lacks or computes
// slowly.
//
// Tensors are [N, C, ...] and packed: contiguous, or contiguous in a channels-last format.
// Thread safety: any thread may call; it uses its share of ATen's threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::nn {

// Mean and variance of a set of values, in a form that can be joined with that of another set.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  // Sum of squared distances from the mean.

  // Joins the moments of another set of any size: equation 2.1 of Chan, Golub and LeVeque,
  // "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
  void join(const Moments& other) {
    if (other.count == 0) return;
    const double both = count + other.count;
    const double delta = other.mean - mean;
    mean += delta * (other.count / both);
    m2 += other.m2 + delta * delta * (count * other.count / both);
    count = both;
  }
};

// Returns the tensor itself if it is packed, otherwise a packed copy. Autograd records the copy.
at::Tensor packed(const at::Tensor& tensor);
at::Tensor packed_like(const at::Tensor& tensor, const at::Tensor& model);

// The type of ATen's per-channel tensors: float for half precision.
at::ScalarType channel_type(at::ScalarType input);

// The moments of each channel. If channels are not the last dimension, it reads the input once and
// is vectorised; ATen's batch_norm_update_stats takes 3 to 7 times as long, var_mean about 20
// times.
std::vector<Moments> channel_moments(const at::Tensor& input);

// scale * (gradient - offset - (input - mean) * slope). `coefficients` has one row for each of
// mean, offset, slope and scale, in this order: [4, C], contiguous, channel_type().
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& coefficients);

}  // namespace lockstep::nn
