// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_importance.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::prune {
namespace {

// Per index of `dim`, in double precision.
at::Tensor scores_of(const LabelledTensor& held, std::size_t dim, Importance importance) {
  at::Tensor values = held.tensor.detach();
  if (importance == Importance::taylor) {
    require(held.tensor.grad().defined(), [&] {
      return "ChannelPruner: Importance::taylor needs gradients, and " + held.name +
             " has none: call backward() on some batches first";
    });
    values = values * held.tensor.grad();
  }
  const at::Tensor rows =
      values.cpu().to(at::kDouble).transpose(0, static_cast<std::int64_t>(dim)).flatten(1);
  switch (importance) {
    case Importance::l2:
      return rows.square().sum(1).sqrt();
    case Importance::taylor:
      return rows.sum(1).abs();
    default:
      return rows.abs().sum(1);
  }
}

at::Tensor scores_of_scale(const LabelledTensor& held) {
  return held.tensor.detach().cpu().to(at::kDouble).abs();
}

}  // namespace

std::optional<std::vector<double>> importances_of(const TracedGroup& group,
                                                  const ChannelTrace& trace,
                                                  Importance importance) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::size_t, std::size_t>, at::Tensor> scores;
  const auto score = [&](const ChannelPlace& place) {
    at::Tensor& all = scores[{place.tensor, place.dim}];
    const LabelledTensor& held = trace.tensors[place.tensor];
    if (!all.defined())
      all = importance == Importance::batch_norm ? scores_of_scale(held)
                                                 : scores_of(held, place.dim, importance);
    return all.data_ptr<double>()[place.index];
  };
  std::vector<double> importances;
  for (const Channel& channel : group.channels) {
    double sum = 0;
    std::size_t count = 0;
    for (const ChannelPlace& place :
         importance == Importance::batch_norm ? channel.places : channel.filters) {
      if (importance == Importance::batch_norm && !trace.norm_scales.contains(place.tensor))
        continue;
      sum += score(place);
      ++count;
    }
    if (count == 0) return std::nullopt;
    require(std::isfinite(sum), [&] {
      return "ChannelPruner: weights or gradients of " + group.layers.front() + " are not finite";
    });
    importances.push_back(sum / static_cast<double>(count));
  }
  return importances;
}

}  // namespace lockstep::prune
