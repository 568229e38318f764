// LARS's and LAMB's passes over one parameter: sums of squares, then the step.
//
// Tensors of a call have one type, float or double, and one dense layout, in CPU memory. Sums have
// the same bits for every number of threads. Thread safety: any thread, for different parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/optim/layerwise.h"

namespace lockstep::optim {

SquareSums square_sums(const at::Tensor& weights, const at::Tensor& update);

// d = (gradient + decay * weights) * scale
// momentum_buffer = momentum * momentum_buffer + d
// weights -= lr * (momentum_buffer, with nesterov d + momentum * momentum_buffer)
struct LarsPass {
  double lr;
  double momentum;  // 0: no buffer.
  double decay;
  double scale;
  bool nesterov;

  void run(const at::Tensor& weights, const at::Tensor& gradient,
           const at::Tensor& momentum_buffer) const;
};

// u = m_scale * exp_avg / (sqrt(exp_avg_sq) * v_scale + eps) + decay * weights
struct LambUpdate {
  double m_scale;
  double v_scale;
  double eps;
  double decay;

  // Updates both averages. Returns the sums of the weights and of u.
  SquareSums measure(const at::Tensor& weights, const at::Tensor& gradient,
                     const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, double beta1,
                     double beta2) const;

  // weights -= lr * u
  void run(const at::Tensor& weights, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           double lr) const;
};

}  // namespace lockstep::optim
