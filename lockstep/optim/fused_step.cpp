// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/fused_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::optim {
namespace {

void require_fusible(const at::Tensor& parameter, std::string_view optimizer) {
  const at::Tensor& gradient = parameter.grad();
  const auto refuse = [&](Fault fault, const char* why) {
    throw Error(fault, std::string(optimizer) + ": " + why);
  };
  if (gradient.layout() != at::kStrided) refuse(Fault::unsupported, "a gradient is sparse");
  if (!at::isFloatingType(parameter.scalar_type()))
    refuse(Fault::unsupported, "a parameter is not of a floating-point type");
  if (!parameter.unsafeGetTensorImpl()->is_non_overlapping_and_dense())
    refuse(Fault::unsupported, "a parameter is a view with gaps or overlaps in memory");
  if (gradient.sizes() != parameter.sizes())
    refuse(Fault::misuse, "a gradient has another shape than its parameter");
}

template <class... Types>
bool is_any_of(const torch::optim::OptimizerOptions& options) {
  return ((dynamic_cast<const Types*>(&options) != nullptr) || ...);
}

void require_in_one_group(const std::vector<ParamGroup>& groups, std::string_view optimizer) {
  if (groups.size() < 2) return;
  std::vector<at::Tensor> all;
  for (const ParamGroup& group : groups)
    all.insert(all.end(), group.params().begin(), group.params().end());
  const std::size_t given = all.size();
  require(distinct(std::move(all)).size() == given, [&] {
    return std::string(optimizer) + ": some parameters appear in more than one parameter group";
  });
}

}  // namespace

void take_options(const std::vector<ParamGroup>& given,
                  const torch::optim::OptimizerOptions& defaults, std::vector<ParamGroup>& groups) {
  using namespace torch::optim;
  if (is_any_of<SGDOptions, AdamOptions, AdamWOptions, AdagradOptions, RMSpropOptions,
                LBFGSOptions>(defaults))
    return;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].has_options()) continue;
    const OptimizerOptions& options = given[i].options();
    require(typeid(options) == typeid(defaults), [&] {
      return "the options of a param group are of type " + c10::demangle(typeid(options).name()) +
             ", those of the optimizer of type " + c10::demangle(typeid(defaults).name());
    });
    groups[i].set_options(options.clone());
  }
}

void drop_repeated(std::vector<ParamGroup>& groups) {
  for (ParamGroup& group : groups) group.params() = distinct(std::move(group.params()));
}

torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode enable_grad(true);
  return closure();
}

void require_fusible(const std::vector<ParamGroup>& groups, std::string_view optimizer) {
  require_in_one_group(groups, optimizer);
  for (const ParamGroup& group : groups)
    for (const at::Tensor& parameter : group.params()) {
      require(!parameter.is_meta(), [&] {
        return std::string(optimizer) + ": a parameter is on the meta device and has no values";
      });
      if (parameter.grad().defined()) require_fusible(parameter, optimizer);
    }
}

void require_state(const at::Tensor& parameter, const at::Tensor& tensor) {
  require(
      tensor.defined() && tensor.sizes() == parameter.sizes(),
      "the state of a parameter lacks a tensor, or has one of another shape: the state belongs to "
      "other options, to another model, or to one that has been cut since");
}

void lay_out_as(const at::Tensor& parameter, at::Tensor& tensor) {
  if (!has_strides(tensor, parameter.strides()))
    tensor = at::empty_like(parameter, tensor.options(), at::MemoryFormat::Preserve).copy_(tensor);
}

bool KernelBatch::takes(const at::Tensor& parameter, std::int64_t at_step) const {
  return step == at_step && dtype == parameter.scalar_type() && device == parameter.device();
}

void KernelBatch::add(const at::Tensor& parameter) {
  parameters.push_back(parameter);
  gradients.push_back(parameter.grad());
  lay_out_as(parameter, gradients.back());
}

void KernelBatch::note_written() const {
  for (const at::Tensor& parameter : parameters) parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace lockstep::optim
