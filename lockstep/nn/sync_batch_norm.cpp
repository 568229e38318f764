// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/functional/batchnorm.h>

#include <array>
#include <ostream>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/batch_norm_kernels.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

using nn::Moments;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call : torch::CustomClassHolder {
  Call(ProcessGroup all, std::string name_of_layer)
      : group(std::move(all)), name(std::move(name_of_layer)) {}

  const ProcessGroup group;
  const std::string name;
  double count = 0;     // Per channel over all ranks.
  at::Tensor mean;      // Mean and biased variance of each
  at::Tensor variance;  // channel, in double precision.
};

// Adds the layer's name: ranks compare only tags' hashes.
template <class Collective>
auto naming_mismatch(const Call& call, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    if (error.fault() != Fault::mismatch) throw;
    throw Error(Fault::mismatch, "in " + call.name + ": " + error.what());
  }
}

// Collective, in double precision: counts beyond 2^24 are exact, joined moments exact to a float.
// Ranks join in rank order and get equal bits.
std::vector<Moments> moments_of_all_ranks(const at::Tensor& input, const Call& call) {
  std::vector<Moments> moments = nn::channel_moments(input);
  const std::size_t channels = moments.size();
  const at::Tensor mine =
      at::empty({static_cast<std::int64_t>(2 * channels + 1)}, at::dtype(at::kDouble));
  auto* values = mine.mutable_data_ptr<double>();
  for (std::size_t c = 0; c < channels; ++c) {
    values[c] = moments[c].mean;
    values[channels + c] = moments[c].m2;
  }
  values[2 * channels] = moments.empty() ? 0 : moments[0].count;

  const at::Tensor all =
      naming_mismatch(call, [&] { return all_gather(mine, call.group, {.label = call.name}); });
  moments.assign(channels, {});
  for (int rank = 0; rank < call.group.size(); ++rank) {
    const auto* theirs = all.const_data_ptr<double>() + rank * mine.numel();
    for (std::size_t c = 0; c < channels; ++c)
      moments[c].join(
          {.count = theirs[2 * channels], .mean = theirs[c], .m2 = theirs[channels + c]});
  }
  return moments;
}

void gather_statistics(const at::Tensor& input, Call& call) {
  const at::NoGradGuard no_grad;
  const std::vector<Moments> moments = moments_of_all_ranks(input, call);
  const auto channels = static_cast<std::int64_t>(moments.size());
  call.count = moments.empty() ? 0 : moments[0].count;
  call.mean = at::empty({channels}, at::dtype(at::kDouble));
  call.variance = at::empty_like(call.mean);
  for (std::int64_t c = 0; c < channels; ++c) {
    call.mean.mutable_data_ptr<double>()[c] = moments[c].mean;
    call.variance.mutable_data_ptr<double>()[c] = call.count > 0 ? moments[c].m2 / call.count : 0;
  }
  require(call.count != 1, [&] {
    return call.name + ": expected more than 1 value per channel when training, got 1 on all " +
           std::to_string(call.group.size()) + " ranks together";
  });
}

void update(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(value, momentum);
}

at::Tensor of_channels(const at::Tensor& values, const at::Tensor& input) {
  return values.defined() ? values.to(nn::channel_type(input.scalar_type())) : values;
}

// Sums of the output's gradient, and of its products with the normalised input: [2, C].
at::Tensor local_sums(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                      const at::Tensor& invstd) {
  if (input.numel() == 0) return at::zeros({2, input.size(1)}, mean.options());
  const auto [none, product, sum] =
      at::native_batch_norm_backward(gradient, input, {}, {}, {}, mean, invstd, /*train=*/true,
                                     /*eps=*/0, std::array<bool, 3>{false, true, true});
  return at::stack({sum, product});
}

// d x = w / sigma * (d y - mean(d y) - xhat * mean(d y * xhat)), the means over all ranks.
at::Tensor global_input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                                 const at::Tensor& weight, const at::Tensor& mean,
                                 const at::Tensor& invstd, const at::Tensor& local,
                                 const Call& call) {
  const at::Tensor sums = local.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const std::string label = call.name + " backward";
  naming_mismatch(call, [&] { all_reduce(sums, call.group, ReduceOp::sum, {.label = label}); });
  if (input.numel() == 0) return at::empty_like(input);
  const at::Tensor means = (sums / call.count).to(mean.scalar_type());
  const at::Tensor scale = weight.defined() ? of_channels(weight, input) * invstd : invstd;
  return nn::input_gradient(gradient, input, at::stack({mean, means[0], means[1] * invstd, scale}));
}

struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps,
                            const c10::intrusive_ptr<Call>& call) {
    const at::Tensor mean = of_channels(call->mean, input);
    const at::Tensor invstd = of_channels((call->variance + eps).rsqrt(), input);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["bias"] = bias.has_value();
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, invstd});
    if (input.numel() == 0) return at::empty_like(input);
    const auto on_channels = [&](const std::optional<at::Tensor>& values) {
      return values ? std::optional(of_channels(*values, input)) : std::nullopt;
    };
    return std::get<0>(at::native_batch_norm(input, on_channels(weight), on_channels(bias), mean,
                                             of_channels(call->variance, input), /*training=*/false,
                                             /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw Error(Fault::unsupported,
                  "SyncBatchNorm: backward() with create_graph is not supported");
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3];
    const at::Tensor gradient = nn::packed_like(gradients[0], input);
    const at::Tensor local = local_sums(gradient, input, mean, invstd);
    at::Tensor of_input, of_weight, of_bias;
    if (context->needs_input_grad(0))
      of_input = global_input_gradient(gradient, input, weight, mean, invstd, local, *call);
    if (weight.defined()) of_weight = local[1].to(weight.scalar_type());
    if (context->saved_data["bias"].toBool()) of_bias = local[0].to(weight.scalar_type());
    return {of_input, of_weight, of_bias, {}, {}};
  }
};

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm,
                                     std::optional<ProcessGroup> group)
    : NormImplBase(batch_norm), group_(std::move(group)), has_own_group_(group_.has_value()) {}

void SyncBatchNormImpl::synchronize(const ProcessGroup& group, std::string name) {
  group_ = group;
  name_ = "SyncBatchNorm " + std::move(name);
}

// register_parameter() would make a frozen weight require a gradient. Buffers cannot be registered
// again.
void SyncBatchNormImpl::share(const State& state) {
  weight = parameters_["weight"] = state.weight;
  bias = parameters_["bias"] = state.bias;
  if (!state.running_mean.defined()) return;
  running_mean.set_data(state.running_mean);
  running_var.set_data(state.running_var);
  num_batches_tracked.set_data(state.num_batches_tracked);
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  return is_training() && group_ && group_->size() > 1 ? synchronized(input) : plain(input);
}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  require(input.dim() >= 2 && input.dim() <= 5, [&] {
    return name_ + ": expected an input of 2 to 5 dimensions, got " + std::to_string(input.dim());
  });
  require(input.size(1) == options.num_features(), [&] {
    return name_ + ": expected " + std::to_string(options.num_features()) + " channels, got " +
           std::to_string(input.size(1));
  });
}

// Returns the batch's weight in the running statistics.
double SyncBatchNormImpl::next_momentum() {
  if (!is_training() || !options.track_running_stats()) return options.momentum().value_or(0);
  num_batches_tracked += 1;
  return options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
}

torch::Tensor SyncBatchNormImpl::plain(const torch::Tensor& input) {
  const double momentum = next_momentum();
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(),
                                                   momentum, options.eps());
}

torch::Tensor SyncBatchNormImpl::synchronized(const torch::Tensor& input) {
  if (!input.is_cpu())
    throw Error(Fault::unsupported, name_ + ": the input is on " + input.device().str() +
                                        ", and SyncBatchNorm works in CPU memory only");
  const at::ScalarType type = input.scalar_type();
  require(!weight.defined() || weight.scalar_type() == type ||
              (type != at::kDouble && weight.scalar_type() == nn::channel_type(type)),
          [&] {
            return name_ + ": weights of type " + c10::toString(weight.scalar_type()) +
                   " beside an input of type " + c10::toString(type);
          });
  const at::Tensor values = nn::packed(input);
  const auto call = c10::make_intrusive<Call>(*group_, name_);
  gather_statistics(values.detach(), *call);
  const double momentum = next_momentum();
  if (call->count > 0 && options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    update(running_mean, call->mean, momentum);
    update(running_var, call->variance * (call->count / (call->count - 1)), momentum);
  }
  return Normalize::apply(values, if_defined(weight), if_defined(bias), options.eps(), call);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace lockstep
