// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/parallel/deterministic/deterministic_pass.h"
#include "lockstep/parallel/gradients/kept_gradients.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/replicate/module_replica.h"

namespace lockstep {
namespace {

// As LibTorch's allocator aligns.
bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0;
}

DistributedDataParallelOptions data_parallel_options(const DeterministicOptions& options) {
  return {.broadcast_buffers = false,
          .find_unused_parameters = options.find_unused_parameters,
          .overlap = false,
          .share_parameters = options.share_parameters,
          .mean = options.mean,
          .non_finite = options.non_finite};
}

}  // namespace

at::Tensor GlobalMicrobatch::of(const at::Tensor& rows) const {
  require(rows.defined() && rows.dim() > 0, "GlobalMicrobatch::of: there are no rows");
  const int own = count / ranks;
  require(rows.size(0) % own == 0 && rows.size(0) > 0, [&] {
    return "GlobalMicrobatch::of: " + std::to_string(rows.size(0)) +
           " rows cannot be cut into this rank's " + std::to_string(own) + " microbatches of " +
           std::to_string(count) +
           ": choose another batch size, and drop the last batch of an epoch if it is smaller";
  });
  const auto format = rows.suggest_memory_format();
  const at::Tensor part = rows.slice(0, index / ranks, {}, own).contiguous(format);
  // A single row counts as contiguous with any row stride: copied, too.
  return is_aligned(part) && part.size(0) > 1 ? part : part.clone(format);
}

DeterministicBase::DeterministicBase(const std::shared_ptr<torch::nn::Module>& module,
                                     const ProcessGroup& group, const DeterministicOptions& options)
    : DataParallelBase(module, group,
                       data_parallel_options(parallel::DeterministicPass::checked(options, group)),
                       {.sink =
                            [&](const parallel::ModuleReplica&, const parallel::SinkChoice& sinks) {
                              return std::make_unique<parallel::MicrobatchGradients>(
                                  sinks.parameters(), options.non_finite != NonFinite::ignore);
                            },
                        .is_deterministic = true}),
      pass_(std::make_unique<parallel::DeterministicPass>(replica(), *reducer_, group, options)) {}

DeterministicBase::~DeterministicBase() = default;

double DeterministicBase::train_microbatches(std::int64_t step, const MicrobatchLoss& loss_of) {
  require(at::GradMode::is_enabled(), "train_microbatches: gradients are disabled");
  require(synchronize_, "train_microbatches: another call is running");
  const NoSync alone(synchronize_, /*active=*/true);  // Until all gradients are summed.
  return pass_->run(step, loss_of, replica_->change());
}

int DeterministicBase::microbatches() const { return pass_->microbatches(); }

std::vector<at::Tensor> DeterministicBase::microbatch_memory() const { return pass_->memory(); }

}  // namespace lockstep
