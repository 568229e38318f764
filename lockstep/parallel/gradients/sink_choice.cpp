// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/sink_choice.h"

#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/bucketed_gradients.h"
#include "lockstep/parallel/gradients/kept_gradients.h"
#include "lockstep/parallel/gradients/overlap.h"
#include "lockstep/parallel/gradients/owned_gradients.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/trained_parameters.h"

namespace lockstep {
namespace {

NamedTensors only_trained(NamedTensors all) {
  NamedTensors parameters = trained_parameters(std::move(all));
  require(!parameters.empty(), "the module has no parameter that requires a gradient");
  for (const auto& [name, parameter] : parameters) require_reducible_gradient(name, parameter);
  return parameters;
}

ProcessGroup group_of_its_own(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

bool checks_finite(const DistributedDataParallelOptions& options) {
  return options.non_finite != NonFinite::ignore;
}

}  // namespace

SinkChoice::SinkChoice(NamedTensors parameters, const ProcessGroup& group,
                       const DistributedDataParallelOptions& options)
    : options_(options),
      parameters_(only_trained(std::move(parameters))),
      kind_(kind_of(options)),
      overlapped_(kind_ == Kind::averaged &&
                  agree_on_overlap(options, group, parameters_.front().second.device())),
      group_(overlapped_ ? group_of_its_own(group) : group) {}

SinkChoice::Kind SinkChoice::kind_of(const DistributedDataParallelOptions& options) {
  if (options.deterministic != 0) return Kind::pieces;
  return options.share_parameters ? Kind::shared : Kind::averaged;
}

std::unique_ptr<GradientSink> SinkChoice::sink() const {
  const bool check = checks_finite(options_);
  if (kind_ == Kind::pieces) return std::make_unique<PieceGradients>(parameters_, check);
  if (kind_ == Kind::shared) return std::make_unique<PooledGradients>(parameters_, group_, check);
  if (group_.size() == 1) return std::make_unique<KeptGradients>(parameters_, check);
  return std::make_unique<BucketedGradients>(
      parameters_, group_,
      BucketedGradients::Settings{.overlapped = overlapped_, .check_finite = check});
}

void SinkChoice::use_hook(Reducer& reducer, CommunicationHook hook) {
  require(static_cast<bool>(hook), "register_comm_hook: there is no hook");
  require(kind_ != Kind::hooked, "register_comm_hook: there is one already");
  if (kind_ != Kind::averaged)
    throw Error(
        Fault::unsupported,
        "register_comm_hook: gradients that are shared, sharded or of pieces lie in no bucket");
  require(!reducer.has_passed(), "register_comm_hook: a backward pass has been averaged already");
  // An exception of the hook ends its group, which must not be the caller's.
  const ProcessGroup group = overlapped_ ? group_ : group_of_its_own(group_);
  reducer.set_sink(std::make_unique<BucketedGradients>(
                       parameters_, group,
                       BucketedGradients::Settings{.overlapped = overlapped_,
                                                   .check_finite = checks_finite(options_),
                                                   .hook = std::move(hook)}),
                   group);
  group_ = group;
  kind_ = Kind::hooked;
}

void SinkChoice::use_owners(Reducer& reducer, std::vector<int> owners) {
  require(kind_ != Kind::owned, "shard_gradients: they are sharded already");
  require(!reducer.has_passed(), "shard_gradients: a backward pass has been averaged already");
  require_shardable(reducer);
  if (group_.size() == 1) return;  // This rank owns all.
  reducer.set_sink(
      std::make_unique<OwnedGradients>(parameters_, std::move(owners), group_of_its_own(group_),
                                       checks_finite(options_)),
      group_);
  kind_ = Kind::owned;
}

void SinkChoice::require_shardable(const Reducer& reducer) const {
  if (kind_ == Kind::hooked)
    throw Error(Fault::unsupported, "shard_gradients: a communication hook takes whole buckets");
  if (kind_ != Kind::averaged)
    throw Error(
        Fault::unsupported,
        "shard_gradients: not together with share_parameters or deterministic, whose gradients "
        "are not averaged in backward()");
  const auto& [name, first] = parameters_.front();
  if (!first.is_cpu())
    throw Error(Fault::unsupported, "shard_gradients: only in CPU memory, and parameter " + name +
                                        " is on " + first.device().str());
  if (reducer.has_others())
    throw Error(Fault::unsupported,
                "shard_gradients: another DistributedDataParallel has some of the parameters too");
}

}  // namespace lockstep
