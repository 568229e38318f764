// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/reducer.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

Reducer::Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
                 const DistributedDataParallelOptions& options)
    : options_(options),
      parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      agreement_(options),
      intake_(parameters_, hooks_, std::move(sink), options),
      touched_(parameters_.size(), false),
      hooks_(parameters_, *this) {
  const std::string refused = hooks_.refused();
  if (!refused.empty())
    throw Error(Fault::unsupported,
                "another DistributedDataParallel has these parameters too: " + refused +
                    ". Two average their gradients together only without share_parameters, "
                    "deterministic, GradientMean::over_samples, shard_gradients() and join(): make "
                    "one DistributedDataParallel of a module that holds both modules");
}

bool Reducer::allows_others() const {
  return sink().allows_others() && options_.mean == GradientMean::over_ranks && join_ == nullptr;
}

void Reducer::set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group) {
  intake_.set_sink(std::move(sink));
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
  forget_pass_cut_short();
  hooks_.renew();
  if (join_ == nullptr) intake_.rebuild_buckets(groups_.own);
  synchronize_ = synchronize;
  if (synchronize) hooks_.take_charge();
}

void Reducer::count_samples(double samples) {
  forget_pass_cut_short();
  samples_ += samples;
}

void Reducer::forget_window() {
  forget_pass_cut_short();
  samples_ = 0;
  touched_.assign(touched_.size(), false);
}

BackwardTimes Reducer::times() const {
  BackwardTimes times = intake_.times();
  times.wait += report_time_;
  return times;
}

}  // namespace lockstep
