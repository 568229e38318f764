// LARS and LAMB: optimizers for large batches. They scale each parameter's step by the norm of its
// weights (docs/guide/large-batches.md).
//
//   const auto options = lockstep::LAMBOptions(4e-3).weight_decay(0.01);
//   lockstep::LAMB lamb(lockstep::decayed_and_not(*net, options), options);
//
// Pass all param groups to the constructor: LibTorch's add_param_group() ignores a group's options.
// Norms are summed in double precision.
//
// In SharedOptimizer and FullyShardedOptimizer, ranks step parts of parameters: one all_reduce per
// step adds the sums of squares, 16 bytes per parameter. The order of the sum differs, so weights
// equal the plain optimizer's up to rounding.
//
// Thread safety: none.
// Errors: as Adam's (optimizers.h). Also misuse, at construction, for options out of range and for
// param groups with another optimizer's options. Unsupported for parameters that are not float or
// double in CPU memory, or are cut by tensor parallelism.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Over the elements of one parameter.
struct SquareSums {
  double weights = 0;
  double update = 0;  // LARS: of the gradient. LAMB: of the unscaled step.
};

// Steps parameters, or parts of them, by the norms of whole parameters.
class LOCKSTEP_API LayerwiseOptimizer : public torch::optim::Optimizer {
 public:
  // Adds other ranks' sums. One entry per parameter, in the order of the param groups.
  using AddParts = std::function<void(std::vector<SquareSums>& sums)>;

  // Each step() calls `add_parts` once, also without gradients.
  void set_add_parts(AddParts add_parts) { add_parts_ = std::move(add_parts); }

  torch::Tensor step(LossClosure closure = nullptr) final;

 protected:
  LayerwiseOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  virtual std::string_view name() const = 0;

  // The two passes over a parameter. `gradient` has its strides; `sums` are the whole parameter's.
  virtual SquareSums measure(const at::Tensor& parameter, const at::Tensor& gradient,
                             const torch::optim::OptimizerOptions& options) = 0;
  virtual void apply(const at::Tensor& parameter, const at::Tensor& gradient,
                     const torch::optim::OptimizerOptions& options, const SquareSums& sums) = 0;

 private:
  void require_steppable(const at::Tensor& parameter) const;

  AddParts add_parts_;
};

struct LOCKSTEP_API LARSOptions : public torch::optim::OptimizerCloneableOptions<LARSOptions> {
  LARSOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;

  // Trust coefficient: ratio of a step's norm to the weights', before `lr`.
  TORCH_ARG(double, trust_coefficient) = 0.02;
  TORCH_ARG(double, eps) = 1e-8;

  // Whether scaling only shortens steps.
  TORCH_ARG(bool, clip) = false;

  // Whether steps are scaled.
  TORCH_ARG(bool, adapt) = true;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct LOCKSTEP_API LARSParamState
    : public torch::optim::OptimizerCloneableParamState<LARSParamState> {
  TORCH_ARG(torch::Tensor, momentum_buffer);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// SGD with momentum and layerwise scaled gradients (You, Gitman, Ginsburg 2017), by the formula of
// NVIDIA apex (LARC.py):
//   scale = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)
//   scale = min(scale / lr, 1) with `clip`
//   g = (g + weight_decay * w) * scale, where neither norm is 0; otherwise g is unchanged
// Unlike LARC, groups with adapt(false) are stepped as by SGD.
class LOCKSTEP_API LARS : public LayerwiseOptimizer {
 public:
  LARS(const std::vector<torch::optim::OptimizerParamGroup>& groups, LARSOptions defaults);
  LARS(std::vector<at::Tensor> parameters, LARSOptions defaults);

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::string_view name() const override { return "LARS"; }
  SquareSums measure(const at::Tensor& parameter, const at::Tensor& gradient,
                     const torch::optim::OptimizerOptions& options) override;
  void apply(const at::Tensor& parameter, const at::Tensor& gradient,
             const torch::optim::OptimizerOptions& options, const SquareSums& sums) override;
};

struct LOCKSTEP_API LAMBOptions : public torch::optim::OptimizerCloneableOptions<LAMBOptions> {
  LAMBOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

  // Whether steps are scaled.
  TORCH_ARG(bool, adapt) = true;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct LOCKSTEP_API LAMBParamState
    : public torch::optim::OptimizerCloneableParamState<LAMBParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// AdamW with layerwise scaled steps (You et al. 2020, algorithm 2), with Adam's m and v.
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
//   w = w - lr * |w| / |u| * u, where neither norm is 0; otherwise w - lr * u
class LOCKSTEP_API LAMB : public LayerwiseOptimizer {
 public:
  LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, LAMBOptions defaults = {});
  LAMB(std::vector<at::Tensor> parameters, LAMBOptions defaults = {});

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::string_view name() const override { return "LAMB"; }
  SquareSums measure(const at::Tensor& parameter, const at::Tensor& gradient,
                     const torch::optim::OptimizerOptions& options) override;
  void apply(const at::Tensor& parameter, const at::Tensor& gradient,
             const torch::optim::OptimizerOptions& options, const SquareSums& sums) override;
};

// --- Which parameters ----------------------------------------------------------------------------

// Two param groups: parameters with at least two dimensions get `options`. The others, such as
// biases and those of normalisation, get neither weight decay nor scaling, as large batches
// require.
template <class Options>
  requires requires(Options options) { options.weight_decay(0).adapt(false); }
std::vector<torch::optim::OptimizerParamGroup> decayed_and_not(const torch::nn::Module& module,
                                                               const Options& options) {
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : module.parameters())
    (parameter.dim() > 1 ? decayed : others).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decayed), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others),
                      std::make_unique<Options>(Options(options).weight_decay(0).adapt(false)));
  return groups;
}

}  // namespace lockstep
