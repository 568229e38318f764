// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/tensor_parallel/check_parallel.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep {
namespace {

// Relative to the largest absolute value of `expected`; infinite for a NaN.
double difference_of(const at::Tensor& expected, const at::Tensor& found) {
  if (expected.numel() == 0) return 0;
  const double largest = expected.abs().max().item<double>();
  const double most = (expected - found).abs().max().item<double>();
  if (!std::isfinite(most)) return std::numeric_limits<double>::infinity();
  return most == 0 ? 0 : most / std::max(largest, std::numeric_limits<double>::min());
}

std::string text_of(const at::Tensor& expected, const at::Tensor& found, double difference) {
  const at::Tensor at = (expected - found).abs().nan_to_num(INFINITY).flatten().argmax();
  const auto place = at.item<std::int64_t>();
  std::ostringstream text;
  text.precision(3);
  text << "differs by " << difference << " of its largest value: element " << place << " is ";
  text.precision(9);
  text << found.flatten()[place].item<double>() << " and should be "
       << expected.flatten()[place].item<double>();
  return text.str();
}

// May be undefined. Collective for a parameter with a layout: all ranks have a gradient, or none.
at::Tensor whole_gradient(const at::Tensor& parameter, const Layouts& layouts,
                          const std::string& name) {
  const auto layout = layouts.find(name);
  if (layout == layouts.end() || !parameter.grad().defined()) return parameter.grad();
  return gather_whole(parameter.grad(), layout->second);
}

}  // namespace

ParallelCheck compare_passes(const torch::nn::Module& whole, const at::Tensor& whole_loss,
                             const torch::nn::Module& parallel, const at::Tensor& parallel_loss,
                             const ProcessGroup& group, const CheckParallelOptions& options) {
  const at::NoGradGuard no_grad;
  const NamedTensors expected = named_parameters(whole);
  const NamedTensors found = named_parameters(parallel);
  require(expected.size() == found.size(), "check_parallel: the models have different parameters");

  ParallelCheck check;
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = none;  // The loss is 0, then parameters.
  std::string why;
  const auto refuse = [&](std::int64_t place, const std::string& text) {
    if (first != none) return;
    first = place;
    why = text;
  };
  const auto compare = [&](std::int64_t place, const std::string& name, const at::Tensor& one,
                           const at::Tensor& other) {
    if (one.defined() != other.defined())
      return refuse(place, name + " is there in one of the models alone");
    if (!one.defined()) return;
    const double difference = difference_of(one, other);
    if (difference > options.tolerance) refuse(place, name + ' ' + text_of(one, other, difference));
    if (difference < check.difference) return;
    check.worst = name;
    check.difference = difference;
  };
  compare(0, "the loss", whole_loss.detach(), parallel_loss.detach());
  const Layouts layouts = layouts_of(parallel);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, parameter] = expected[i];
    require(found[i].first == name, "check_parallel: the models have different parameters");
    compare(++check.parameters, "the gradient of " + name, parameter.grad(),
            whole_gradient(found[i].second, layouts, name));
  }
  // A whole parameter's gradient may be wrong on one rank.
  const CallOptions call{.label = "check_parallel"};
  const auto places = all_gather_value(first, group, call);
  const auto reasons = all_gather_bytes(why, group, call);
  const auto earliest = std::min_element(places.begin(), places.end()) - places.begin();
  const auto rank = static_cast<std::size_t>(earliest);
  if (places[rank] == none) return check;
  throw Error(Fault::mismatch,
              "check_parallel: on rank " + std::to_string(rank) + ' ' + reasons[rank]);
}

ParallelCheck check_passes(const std::function<Pass(bool is_parallel)>& pass,
                           const ProcessGroup& group, const CheckParallelOptions& options) {
  const KeptGenerator generator;
  const Pass whole = pass(false);
  generator.restore();
  const Pass parallel = pass(true);
  return compare_passes(*whole.model, whole.loss, *parallel.model, parallel.loss, group, options);
}

}  // namespace lockstep
