// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/products.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/cut.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/summed.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Without at::linear()'s side effects: autocast changes types; an activation checkpoint that keeps
// products searches for it.
bool is_plain(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
              const CutTo& cut) {
  const auto type = weight.scalar_type();
  return cut.group.size() > 1 && x.defined() && x.dim() >= 2 && x.layout() == at::kStrided &&
         at::isFloatingType(type) && x.scalar_type() == type &&
         (!bias.defined() || bias.scalar_type() == type) && x.device() == weight.device() &&
         !at::autocast::is_autocast_enabled(x.device().type()) &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake);
}

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor rows_of(const at::Tensor& x) { return x.flatten(0, x.dim() - 2); }

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = width;
  return sizes;
}

at::Tensor summed_product(const at::Tensor& x, const at::Tensor& matrix, const ProcessGroup& group,
                          const std::string& name) {
  return naming_errors(name, [&] {
    return summed(with_width(x, matrix.size(1)), x.options(), group, {.label = name},
                  [&](const at::Tensor& sum) {
                    at::Tensor rows = rows_of(sum);
                    at::mm_out(rows, rows_of(x), matrix);
                  });
  });
}

struct Where : torch::CustomClassHolder {
  Where(const CutTo& cut, bool with_bias) : group(cut.group), name(cut.name), has_bias(with_bias) {}

  const ProcessGroup group;
  const std::string name;
  const bool has_bias;
};

void save(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
          const std::optional<at::Tensor>& bias, const CutTo& cut) {
  context->save_for_backward({x, weight});
  context->saved_data["where"] =
      c10::IValue::make_capsule(c10::make_intrusive<Where>(cut, bias.has_value()));
}

c10::intrusive_ptr<Where> saved_place(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Where>(context->saved_data["where"].toCapsule());
}

variable_list gradients_with(AutogradContext* context, bool has_bias, const at::Tensor& of_x,
                             const at::Tensor& x, const at::Tensor& of_product,
                             const at::Tensor& of_sum) {
  at::Tensor of_weight, of_bias;
  if (context->needs_input_grad(1)) of_weight = rows_of(of_product).t().mm(rows_of(x));
  if (has_bias && context->needs_input_grad(2)) of_bias = rows_of(of_sum).sum(0);
  return {of_x, of_weight, of_bias, {}};
}

struct ProductOfRows : torch::autograd::Function<ProductOfRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const CutTo& cut) {
    save(context, x, weight, bias, cut);
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto where = saved_place(context);
    const at::Tensor &gradient = gradients[0], &weight = saved[1];
    const bool is_recorded = at::GradMode::is_enabled();  // For second-order gradients.
    at::Tensor x = saved[0], of_x;
    if (is_recorded) x = copy_to_parallel_region(x, where->group, {.label = where->name});
    if (context->needs_input_grad(0))
      of_x = is_recorded ? reduce_from_parallel_region(at::matmul(gradient, weight), where->group,
                                                       {.label = where->name})
                         : summed_product(gradient, weight, where->group,
                                          where->name + " (copy_to_parallel_region) backward");
    return gradients_with(context, where->has_bias, of_x, x, gradient, gradient);
  }
};

struct ProductOfColumns : torch::autograd::Function<ProductOfColumns> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const CutTo& cut) {
    save(context, x, weight, bias, cut);
    at::Tensor sum =
        summed_product(x, weight.t(), cut.group, cut.name + " (reduce_from_parallel_region)");
    return bias ? sum.add_(*bias) : sum;
  }

  // The sum's gradient is each rank's product's, whose own gradient is again a sum.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto where = saved_place(context);
    const at::Tensor of_product =
        copy_to_parallel_region(gradients[0], where->group, {.label = where->name});
    at::Tensor of_x;
    if (context->needs_input_grad(0))
      of_x = rows_of(of_product).mm(saved[1]).view(saved[0].sizes());
    return gradients_with(context, where->has_bias, of_x, saved[0], of_product, gradients[0]);
  }
};

}  // namespace

at::Tensor product_of_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const CutTo& cut) {
  if (is_plain(x, weight, bias, cut)) return ProductOfRows::apply(x, weight, if_defined(bias), cut);
  return at::linear(copy_to_parallel_region(x, cut.group, label_of(cut)), weight, bias);
}

at::Tensor product_of_columns(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              const CutTo& cut) {
  if (is_plain(x, weight, bias, cut))
    return ProductOfColumns::apply(x, weight, if_defined(bias), cut);
  const at::Tensor sum =
      reduce_from_parallel_region(at::linear(x, weight), cut.group, label_of(cut));
  return bias.defined() ? sum + bias : sum;
}

}  // namespace lockstep::nn
