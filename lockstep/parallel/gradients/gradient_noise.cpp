// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_noise.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "lockstep/parallel/gradients/pass_report.h"

namespace lockstep::parallel {
namespace {

// In one wait for the device, if they are on one.
double squares_of(std::vector<at::Tensor> norms) {
  if (norms.empty()) return 0;
  for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
  return at::stack(norms).square().sum().item<double>();
}

}  // namespace

void NoiseEstimate::add(const SquaredNorm& small, const SquaredNorm& large) {
  const double gradient = (large.batch_size * large.mean - small.batch_size * small.mean) /
                          (large.batch_size - small.batch_size);
  const double noise = (small.mean - large.mean) / (1 / small.batch_size - 1 / large.batch_size);
  weight_ = decay_ * weight_ + (1 - decay_);
  gradient_ = decay_ * gradient_ + (1 - decay_) * gradient;
  noise_ = decay_ * noise_ + (1 - decay_) * noise;
}

// Both averages have the same weight, which their ratio does not show.
std::optional<double> NoiseEstimate::batch_size() const {
  if (weight_ == 0 || !(gradient_ > 0)) return {};
  return noise_ / gradient_;
}

void GradientNoise::note(const at::Tensor& gradient, int task) {
  if (task_ != task) ++passes_;
  task_ = task;
  const at::NoGradGuard no_grad;
  norms_.push_back(at::linalg_vector_norm(gradient));
}

double GradientNoise::squares() { return squares_of(norms_); }

void GradientNoise::forget() {
  norms_.clear();
  passes_ = 0;
  task_.reset();
}

void GradientNoise::finish(const PassReports& reports, const NamedTensors& parameters, int ranks) {
  const auto [squares, passes] = reports.own_gradients();
  is_of_one_pass_ = passes == 1;
  if (passes < 2) return;
  std::vector<at::Tensor> means;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (const at::Tensor& mean = parameters[i].second.grad();
        mean.defined() && reports.used_by_any(i))
      means.push_back(mean);
  if (means.empty()) return;
  const auto count = static_cast<double>(passes);
  const double scale = ranks / count;  // The mean over ranks of sums becomes that of all passes.
  estimate_.add({.mean = squares / count, .batch_size = batch_size_},
                {.mean = squares_of(at::_foreach_norm(means)) * scale * scale,
                 .batch_size = batch_size_ * count});
}

}  // namespace lockstep::parallel
