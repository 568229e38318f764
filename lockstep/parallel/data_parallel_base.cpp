// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/data_parallel_base.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/parallel/replicas.h"

namespace lockstep {
namespace {

NamedTensors replicated_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  require_same_tensors(named_tensors(module), group);
  broadcast_from_rank_zero(named_tensors(module), group);
  return named_parameters(module);
}

}  // namespace

DataParallelBase::NoSync::NoSync(bool& synchronize, bool active)
    : synchronize_(synchronize), before_(std::exchange(synchronize, synchronize && !active)) {}

DataParallelBase::DataParallelBase(const torch::nn::Module& module, const ProcessGroup& group,
                                   const DistributedDataParallelOptions& options)
    : module_(module),
      group_(group),
      options_(options),
      reducer_(replicated_parameters(module, group), group, options) {}

void DataParallelBase::count_samples(double samples) {
  require(options_.mean == GradientMean::over_samples,
          "count_samples: gradients are means over ranks; set GradientMean::over_samples");
  require(samples >= 0, "count_samples: their number is negative");
  reducer_.count_samples(samples);
}

// As PyTorch: buffers are not synchronised in the first forward() after one under no_sync or
// without gradients, so that of an evaluation no more than the first batch is collective.
void DataParallelBase::before_forward() {
  const bool with_gradients = at::GradMode::is_enabled();
  if (with_gradients) reducer_.prepare(synchronize_);
  if (std::exchange(buffers_are_due_, with_gradients && synchronize_) && options_.broadcast_buffers)
    broadcast_buffers();
}

void DataParallelBase::broadcast_buffers() {
  const NamedTensors buffers = named_buffers(module_);  // A user may have exchanged them.
  if (buffers.empty()) return;
  if (!join_) return broadcast_from_rank_zero(buffers, group_);
  join_->exchange(Join::Step::broadcast_buffers);
  broadcast_from(buffers, group_, join_->largest_active_rank());
}

DataParallelBase::Joining::Joining(DataParallelBase& ddp, const JoinOptions& options) : ddp_(ddp) {
  require(!ddp.join_, "join() is under way already");
  ddp.join_.emplace(ddp.group_, options);
  ddp.reducer_.set_join(&*ddp.join_);
}

DataParallelBase::Joining::~Joining() {
  ddp_.reducer_.set_join(nullptr);
  ddp_.join_.reset();
}

void DataParallelBase::follow_others() {
  while (const auto step = join_->exchange(Join::Step::joined)) {
    if (*step == Join::Step::average_gradients)
      reducer_.shadow_pass();
    else
      broadcast_from(named_buffers(module_), group_, join_->largest_active_rank());
  }
  broadcast_from(named_tensors(module_), group_, join_->largest_active_rank());
}

}  // namespace lockstep
