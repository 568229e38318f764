// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/reduction.h"

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace lockstep::torch_backend {
namespace {

Reduction weighted_sum_of(const c10d::ReduceOp& op) {
  const auto weight =
      c10::dynamic_intrusive_pointer_cast<c10d::NCCLPreMulSumSupplement>(op.supplement_);
  require(weight.defined(), "PREMUL_SUM without a factor");
  if (weight->tensor_factor.defined()) return {.factor = weight->tensor_factor};
  return {.factor = at::scalar_tensor(weight->double_factor, at::kDouble)};
}

}  // namespace

at::Tensor Reduction::weighted(const at::Tensor& input) const {
  if (!factor.defined()) return input;
  return input.mul(factor.to(input.scalar_type()));
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {.op = ReduceOp::sum};
    case c10d::ReduceOp::AVG:
      return {.op = ReduceOp::average};
    case c10d::ReduceOp::PRODUCT:
      return {.op = ReduceOp::product};
    case c10d::ReduceOp::MIN:
      return {.op = ReduceOp::min};
    case c10d::ReduceOp::MAX:
      return {.op = ReduceOp::max};
    case c10d::ReduceOp::BAND:
      return {.op = ReduceOp::band};
    case c10d::ReduceOp::BOR:
      return {.op = ReduceOp::bor};
    case c10d::ReduceOp::BXOR:
      return {.op = ReduceOp::bxor};
    case c10d::ReduceOp::PREMUL_SUM:
      return weighted_sum_of(op);
    default:
      throw Error(Fault::unsupported, "an unknown reduction");
  }
}

}  // namespace lockstep::torch_backend
