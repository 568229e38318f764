// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/gradient_elements.h"

#include "lockstep/base/error.h"

namespace lockstep::optim {

std::optional<at::Tensor> gradient_elements(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return {};
  if (gradient.layout() == at::kStrided) return gradient;
  if (gradient.layout() != at::kSparse)
    throw Error(Fault::unsupported,
                "clip_grad_norm_: a gradient has a layout other than strided and sparse COO");
  if (!gradient.is_coalesced()) gradient = gradient.coalesce();
  const at::Tensor values = gradient._values();
  if (values.numel() == 0) return {};
  return values;
}

}  // namespace lockstep::optim
