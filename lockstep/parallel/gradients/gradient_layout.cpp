// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_layout.h"

#include <ATen/ops/empty_strided.h>

#include "lockstep/parallel/gradients/real_view.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// Whether another tensor uses the memory of `gradient`, for example another gradient that
// backward() has still to read and that `incoming` is a view of. Two uses are expected: `gradient`
// and `incoming`. The base of `incoming` is a third if nobody else holds it.
bool is_shared(const at::Tensor& gradient, const at::Tensor& incoming) {
  const std::size_t tensors = gradient.storage().use_count();
  if (!gradient.is_alias_of(incoming) || !incoming.is_view()) return tensors > 2;
  return tensors > 3 || incoming._base().use_count() > 1;
}

}  // namespace

at::Tensor like_gradient(const at::Tensor& parameter) {
  return at::empty_strided(parameter.sizes(), dense_strides(parameter),
                           parameter.options().requires_grad(false));
}

void make_writable(at::Tensor& gradient, const at::Tensor& parameter, const at::Tensor& incoming) {
  if (!gradient.defined()) {
    gradient = like_gradient(parameter).zero_();
  } else if (!holds_values(gradient) || !has_strides(gradient, dense_strides(parameter)) ||
             is_shared(gradient, incoming)) {
    gradient = like_gradient(parameter).copy_(gradient);
  }
}

}  // namespace lockstep
