// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "lockstep/nn/cut.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep {

at::Tensor redistribute(const at::Tensor& x, Placement from, Placement to,
                        const ProcessGroup& group, const CallOptions& options) {
  // sharded(-1) may equal sharded(1).
  const auto axis = [&](Placement placement) {
    return *placement.dim < 0 ? *placement.dim + x.dim() : *placement.dim;
  };
  if (from.is_whole() && to.is_whole()) return x;
  if (from.is_whole()) return scatter_to_parallel_region(x, group, *to.dim, options);
  if (to.is_whole()) return gather_from_parallel_region(x, group, *from.dim, options);
  if (axis(from) == axis(to)) return x;
  return all_to_all_in_region(x, group, /*split_dim=*/*to.dim, /*concat_dim=*/*from.dim, options);
}

}  // namespace lockstep

namespace lockstep::nn {

void RedistributeImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::nn::Redistribute(";
  if (cut()) stream << name_of(cut()->style) << " over " << cut()->group.size() << " ranks";
  stream << ')';
}

torch::Tensor RedistributeImpl::forward(const torch::Tensor& input) {
  if (!cut()) return input;
  const auto& style = std::get<Redistribution>(cut()->style);
  return redistribute(input, style.input, style.output, cut()->group, label_of(*cut()));
}

std::string RedistributeImpl::mismatch(const ParallelStyle& style, int /*ranks*/) const {
  return std::holds_alternative<Redistribution>(style) ? "" : cannot_cut(style, "Redistribute");
}

}  // namespace lockstep::nn
