// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/fused_step.h"

namespace lockstep {
namespace {

using Options = torch::optim::SGDOptions;
using State = torch::optim::SGDParamState;

// Value of Batch::step for a first step. Only this value matters: the first step fills the
// momentum, whatever it contains.
constexpr std::int64_t first_step = 0;
constexpr std::int64_t later_step = 1;

struct SgdBatch : fused::Batch {
  std::vector<at::Tensor> momentum_buffers;  // Empty without momentum.
};

void require_full_precision(const fused::Group& group) {
  for (const at::Tensor& parameter : group.params())
    if (parameter.grad().defined() && at::isReducedFloatingType(parameter.scalar_type()))
      throw Error(Fault::unsupported, "SGD: a parameter is of half precision");
}

void require_momentum(const fused::Group& group, const fused::States& states) {
  if (static_cast<const Options&>(group.options()).momentum() == 0) return;
  for (const at::Tensor& parameter : group.params()) {
    const auto slot = states.find(parameter.unsafeGetTensorImpl());
    if (parameter.grad().defined() && slot != states.end() && slot->second)
      fused::require_state(parameter, static_cast<const State&>(*slot->second).momentum_buffer());
  }
}

void add_with_momentum(std::vector<SgdBatch>& batches, const at::Tensor& parameter,
                       fused::States& states) {
  auto& slot = states[parameter.unsafeGetTensorImpl()];
  const bool first = !slot;
  if (first) {
    auto state = std::make_unique<State>();
    state->momentum_buffer(at::empty_like(parameter, at::MemoryFormat::Preserve));
    slot = std::move(state);
  }
  at::Tensor& buffer = static_cast<State&>(*slot).momentum_buffer();
  fused::lay_out_as(parameter, buffer);
  fused::add_to_batch(batches, parameter, first ? first_step : later_step)
      .momentum_buffers.push_back(buffer);
}

void step(const fused::Group& group, fused::States& states) {
  const auto& options = static_cast<const Options&>(group.options());
  std::vector<SgdBatch> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (options.momentum() == 0)
      fused::add_to_batch(batches, parameter, later_step);
    else
      add_with_momentum(batches, parameter, states);
  }
  for (const SgdBatch& batch : batches) {
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.momentum_buffers,
                    options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                    options.nesterov(), /*maximize=*/false, batch.step == first_step);
    batch.note_written();
  }
}

}  // namespace

torch::Tensor SGD::step(LossClosure closure) {
  torch::Tensor loss = fused::loss_of(closure);
  const at::NoGradGuard no_grad;
  fused::require_fusible(param_groups_, "SGD");
  for (const auto& group : param_groups_) {
    require_full_precision(group);
    require_momentum(group, state_);
  }
  for (const auto& group : param_groups_) lockstep::step(group, state_);
  return loss;
}

}  // namespace lockstep
