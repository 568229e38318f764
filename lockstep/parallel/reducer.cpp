// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/reducer.h"

#include <utility>

#include "lockstep/comm/error.h"

namespace lockstep {

Reducer::Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
                 const DistributedDataParallelOptions& options)
    : options_(options),
      parameters_(std::move(parameters)),
      device_(parameters_.front().second.device()),
      groups_(std::move(groups)),
      agreement_(options),
      order_(parameters_, options),
      sink_(std::move(sink)),
      touched_(parameters_.size(), false),
      counts_(parameters_.size(), options.static_graph),
      hooks_(parameters_, *this) {
  sink_->assign(order_.assignment());
  const std::string refused = hooks_.refused();
  if (!refused.empty())
    throw Error(Fault::unsupported,
                "another DistributedDataParallel has these parameters too: " + refused +
                    ". Two average their gradients together only without share_parameters, "
                    "deterministic, GradientMean::over_samples, shard_gradients() and join(): make "
                    "one DistributedDataParallel of a module that holds both modules");
}

bool Reducer::allows_others() const {
  return sink_->allows_others() && options_.mean == GradientMean::over_ranks && join_ == nullptr;
}

void Reducer::set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group) {
  sink_->release();  // A pass that was cut short may have left it at work.
  sink->assign(order_.assignment());
  sink_ = std::move(sink);
  groups_.own = group;
}

void Reducer::set_join(Join* join) {
  if (join != nullptr && has_others())
    throw Error(
        Fault::unsupported,
        "join(): another DistributedDataParallel has some of the parameters too, and a rank "
        "that is done cannot tell which of the two averages them");
  join_ = join;
}

void Reducer::prepare(bool synchronize) {
  hooks_.renew();
  if (order_.is_due() && join_ == nullptr) rebuild_buckets();
  synchronize_ = synchronize;
  if (synchronize) hooks_.take_charge();
}

void Reducer::rebuild_buckets() {
  BucketAssignment learned = order_.learned(parameters_, groups_.own);
  if (learned == order_.assignment()) return;
  sink_->assign(learned);
  order_.assign(std::move(learned));
}

void Reducer::forget_window() {
  samples_ = 0;
  touched_.assign(touched_.size(), false);
}

BackwardTimes Reducer::times() const {
  return {.copy = copy_time_, .wait = wait_time_, .reduce = sink_->reduce_time()};
}

}  // namespace lockstep
