// Makes HostsBackend's communicators through engines.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/hosts/hosts_backend.h"

namespace lockstep {

void HostsBackend::make_engines() {
  const Collective making{.signature = {.operation = Operation::split}, .timeout = timeout_};
  const Call call(*this, making);
  if (map_.owns_slice() && map_.hosts() < call.ranks) slice_engine(call);
  engine_of_all(call);
}

EngineCommunicator& HostsBackend::slice_engine(const Call& call) {
  if (!slice_engine_)
    slice_engine_ = make_engine(call, map_.slice_ranks(map_.local_rank()), map_.host(),
                                fmt::format("slice {}", map_.local_rank()), {});
  return *slice_engine_;
}

EngineCommunicator& HostsBackend::engine_of_all(const Call& call) {
  if (!engine_of_all_) {
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    engine_of_all_ = make_engine(call, all, rank_, "all", here_);
  }
  return *engine_of_all_;
}

std::unique_ptr<EngineCommunicator> HostsBackend::make_engine(const Call& call,
                                                              const std::vector<int>& members,
                                                              int rank, const std::string& what,
                                                              Place local) {
  CommunicatorOptions options = context_->engine;
  options.rank = rank;
  options.world_ranks.clear();
  for (const int member : members)
    options.world_ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
  options.name = fmt::format("{}/{}", group_, what);
  options.local = local;
  options.timeout = until(call.deadline);
  // The waiting caller has its own deadline, and cancels the call.
  options.call_timeout = std::chrono::hours(24 * 365);
  try {
    return std::make_unique<EngineCommunicator>(std::move(options),
                                                [&] { throw_if_over(call.outer); });
  } catch (const Error& error) {
    if (error.fault() == Fault::system || error.fault() == Fault::timeout) throw_if_explained(call);
    throw;
  }
}

}  // namespace lockstep
