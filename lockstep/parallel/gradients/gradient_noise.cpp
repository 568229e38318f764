// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_noise.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/parallel/gradients/pass_report.h"

namespace lockstep::parallel {
namespace {

// At least single precision: in bfloat16, norms are accurate only to 0.4 %; in float16, at most
// 65504.
at::Tensor norm_of(const at::Tensor& tensor) {
  std::optional<at::ScalarType> type;
  if (at::isReducedFloatingType(tensor.scalar_type())) type = at::kFloat;
  return at::linalg_vector_norm(tensor, /*ord=*/2, /*dim=*/at::OptionalIntArrayRef{},
                                /*keepdim=*/false, type);
}

// Waits only once for a device.
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
  gradient_ = decay_ * gradient_ + (1 - decay_) * gradient;
  noise_ = decay_ * noise_ + (1 - decay_) * noise;
}

std::optional<double> NoiseEstimate::batch_size() const {
  if (!(gradient_ > 0)) return {};
  return std::max(noise_ / gradient_, 0.0);
}

void GradientNoise::note(const at::Tensor& gradient, int task) {
  const at::NoGradGuard no_grad;
  tasks_.insert(task);
  norms_.push_back(norm_of(gradient));
}

// Autograd usually assigns the gradient to an undefined `.grad`: no element is read then.
void GradientNoise::compare(const at::Tensor& gradient, const at::Tensor& sum) {
  if (!sum.defined() || sum.const_data_ptr() == gradient.const_data_ptr()) return;
  const at::NoGradGuard no_grad;
  norms_of_firsts_.push_back(norm_of(gradient));
  norms_of_sums_.push_back(norm_of(sum));
}

double GradientNoise::squares() const {
  constexpr double rounding = 1e-4;
  const double firsts = squares_of(norms_of_firsts_);
  const bool has_older = std::abs(squares_of(norms_of_sums_) - firsts) > rounding * firsts;
  return is_omitted_ || has_older ? std::numeric_limits<double>::quiet_NaN() : squares_of(norms_);
}

std::int64_t GradientNoise::passes() const {
  return std::ssize(tasks_of_outputs_.empty() ? tasks_ : tasks_of_outputs_);
}

void GradientNoise::forget() {
  norms_.clear();
  norms_of_firsts_.clear();
  norms_of_sums_.clear();
  tasks_.clear();
  tasks_of_outputs_.clear();
  is_omitted_ = false;
}

void GradientNoise::finish(const PassReports& reports, const NamedTensors& parameters, int ranks) {
  const auto [squares, passes] = reports.own_gradients();
  is_of_one_pass_ = passes == 1;
  if (passes < 2) return;
  std::vector<at::Tensor> means;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (const at::Tensor& mean = parameters[i].second.grad();
        mean.defined() && reports.used_by_any(i))
      means.push_back(norm_of(mean));
  const double squares_of_mean = squares_of(means);
  if (means.empty() || !std::isfinite(squares) || !std::isfinite(squares_of_mean)) return;
  const auto count = static_cast<double>(passes);
  const double scale = ranks / count;  // From the mean of ranks' sums to that of all passes.
  estimate_.add({.mean = squares / count, .batch_size = batch_size_},
                {.mean = squares_of_mean * scale * scale, .batch_size = batch_size_ * count});
}

}  // namespace lockstep::parallel
