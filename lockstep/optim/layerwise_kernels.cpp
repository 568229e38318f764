// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/layerwise_kernels.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/tensor/on_threads.h"

namespace lockstep::optim {
namespace {

// Elements per thread at once.
constexpr std::int64_t chunk = 16384;

template <class Run>
void for_chunks(std::int64_t count, const Run& run) {
  on_threads((count + chunk - 1) / chunk,
             [&](std::int64_t i) { run(i * chunk, std::min(count, (i + 1) * chunk)); });
}

// Partial sums, for vectorisation.
class Lanes {
 public:
  static constexpr std::int64_t count = 8;

  template <class T>
  void add(std::int64_t lane, T weight, T update) {
    weights_[lane] += static_cast<double>(weight) * weight;
    updates_[lane] += static_cast<double>(update) * update;
  }

  SquareSums total() const {
    SquareSums total;
    for (std::int64_t lane = 0; lane < count; ++lane) {
      total.weights += weights_[lane];
      total.update += updates_[lane];
    }
    return total;
  }

 private:
  std::array<double, count> weights_{};
  std::array<double, count> updates_{};
};

// update(i) is called once per element.
template <class T, class Update>
SquareSums sums_over(std::int64_t count, const T* weights, const Update& update) {
  std::vector<SquareSums> parts(static_cast<std::size_t>((count + chunk - 1) / chunk));
  for_chunks(count, [&](std::int64_t begin, std::int64_t end) {
    Lanes lanes;
    std::int64_t i = begin;
    for (; i + Lanes::count <= end; i += Lanes::count) {
#pragma GCC ivdep
      for (std::int64_t lane = 0; lane < Lanes::count; ++lane)
        lanes.add(lane, weights[i + lane], update(i + lane));
    }
    for (std::int64_t lane = 0; i < end; ++i, ++lane) lanes.add(lane, weights[i], update(i));
    parts[static_cast<std::size_t>(begin / chunk)] = lanes.total();
  });
  SquareSums total;
  for (const SquareSums& part : parts) {
    total.weights += part.weights;
    total.update += part.update;
  }
  return total;
}

template <class Step>
void for_elements(std::int64_t count, const Step& step) {
  for_chunks(count, [&](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) step(i);
  });
}

template <class T>
struct LambElement {
  explicit LambElement(const LambUpdate& update)
      : m_scale(static_cast<T>(update.m_scale)),
        v_scale(static_cast<T>(update.v_scale)),
        eps(static_cast<T>(update.eps)),
        decay(static_cast<T>(update.decay)) {}

  T operator()(T weight, T m, T v) const {
    return m * m_scale / (std::sqrt(v) * v_scale + eps) + decay * weight;
  }

  T m_scale, v_scale, eps, decay;
};

template <class T>
void run_lars(const LarsPass& pass, std::int64_t count, T* weights, const T* gradient, T* buffer) {
  const auto lr = static_cast<T>(pass.lr), momentum = static_cast<T>(pass.momentum);
  const auto decay = static_cast<T>(pass.decay), scale = static_cast<T>(pass.scale);
  const auto d = [=](std::int64_t i) { return (gradient[i] + decay * weights[i]) * scale; };
  if (buffer == nullptr)
    return for_elements(count, [=](std::int64_t i) { weights[i] -= lr * d(i); });
  if (pass.nesterov)
    return for_elements(count, [=](std::int64_t i) {
      const T step = d(i);
      buffer[i] = momentum * buffer[i] + step;
      weights[i] -= lr * (step + momentum * buffer[i]);
    });
  for_elements(count, [=](std::int64_t i) {
    buffer[i] = momentum * buffer[i] + d(i);
    weights[i] -= lr * buffer[i];
  });
}

}  // namespace

SquareSums square_sums(const at::Tensor& weights, const at::Tensor& update) {
  return AT_DISPATCH_FLOATING_TYPES(weights.scalar_type(), "square_sums", [&] {
    const auto* const w = weights.const_data_ptr<scalar_t>();
    const auto* const u = update.const_data_ptr<scalar_t>();
    return sums_over(weights.numel(), w, [=](std::int64_t i) { return u[i]; });
  });
}

void LarsPass::run(const at::Tensor& weights, const at::Tensor& gradient,
                   const at::Tensor& momentum_buffer) const {
  AT_DISPATCH_FLOATING_TYPES(weights.scalar_type(), "LARS", [&] {
    run_lars(*this, weights.numel(), weights.mutable_data_ptr<scalar_t>(),
             gradient.const_data_ptr<scalar_t>(),
             momentum == 0 ? nullptr : momentum_buffer.mutable_data_ptr<scalar_t>());
  });
}

SquareSums LambUpdate::measure(const at::Tensor& weights, const at::Tensor& gradient,
                               const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                               double beta1, double beta2) const {
  return AT_DISPATCH_FLOATING_TYPES(weights.scalar_type(), "LAMB", [&] {
    const auto* const w = weights.const_data_ptr<scalar_t>();
    const auto* const g = gradient.const_data_ptr<scalar_t>();
    auto* const m = exp_avg.mutable_data_ptr<scalar_t>();
    auto* const v = exp_avg_sq.mutable_data_ptr<scalar_t>();
    const auto kept_m = static_cast<scalar_t>(beta1), new_m = static_cast<scalar_t>(1 - beta1);
    const auto kept_v = static_cast<scalar_t>(beta2), new_v = static_cast<scalar_t>(1 - beta2);
    const LambElement<scalar_t> update(*this);
    return sums_over(weights.numel(), w, [=](std::int64_t i) {
      m[i] = kept_m * m[i] + new_m * g[i];
      v[i] = kept_v * v[i] + new_v * (g[i] * g[i]);
      return update(w[i], m[i], v[i]);
    });
  });
}

void LambUpdate::run(const at::Tensor& weights, const at::Tensor& exp_avg,
                     const at::Tensor& exp_avg_sq, double lr) const {
  AT_DISPATCH_FLOATING_TYPES(weights.scalar_type(), "LAMB", [&] {
    auto* const w = weights.mutable_data_ptr<scalar_t>();
    const auto* const m = exp_avg.const_data_ptr<scalar_t>();
    const auto* const v = exp_avg_sq.const_data_ptr<scalar_t>();
    const auto rate = static_cast<scalar_t>(lr);
    const LambElement<scalar_t> update(*this);
    for_elements(weights.numel(), [=](std::int64_t i) { w[i] -= rate * update(w[i], m[i], v[i]); });
  });
}

}  // namespace lockstep::optim
