// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

HostsBackend::HostsBackend(std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank,
                           std::string name, std::chrono::milliseconds timeout,
                           const std::function<void()>& watch)
    : group_(std::move(context), std::move(ranks), rank, std::move(name), timeout, watch),
      pipes_(group_.map(), group_.rank(), group_.size(), group_.local(), group_.channels()),
      entries_(group_),
      engines_(group_, timeout, watch),
      collectives_(group_, engines_, memory_) {}

// All: an engine's communicator composes those that the engine lacks.
bool HostsBackend::native(Operation operation) const {
  return shape_of(operation) != OperationShape::none;
}

std::unique_ptr<Backend> HostsBackend::among(const std::vector<int>& ranks,
                                             const std::string& group,
                                             std::chrono::milliseconds timeout,
                                             const std::function<void()>& watch) {
  const std::vector<int> members = group_.in_the_job(ranks);
  const HostMap& map = group_.map();
  const auto look = watch_the_making(pipes_, group_.name(), group, ranks, watch);
  const bool on_one_host = std::all_of(
      ranks.begin(), ranks.end(), [&](int member) { return map.host_of(member) == map.host(); });
  const auto me = std::find(ranks.begin(), ranks.end(), group_.rank()) - ranks.begin();
  try {
    if (on_one_host)
      return std::make_unique<ShmBackend>(group_.context()->job->among(members), group, timeout,
                                          look);
    return std::make_unique<HostsBackend>(group_.context(), members, static_cast<int>(me), group,
                                          timeout, look);
  } catch (const GroupAborted& error) {
    throw_for_the_making(error, look);
  }
}

void HostsBackend::leave() {
  group_.local()->leave();
  group_.context()->notices->tell_what_is_known();
  group_.channels()->leave();
}

void HostsBackend::abort(const AbortReason& why) {
  group_.local()->abort(why);
  group_.channels()->abort(why);
}

Backend::Allocation HostsBackend::allocate(const Collective& collective) {
  Allocation allocation = group_.local()->allocate(collective);
  const std::vector<std::string> refusals = entries_.exchange(allocation.refusal, collective);
  const HostMap& map = group_.map();
  for (int host = 0; host < map.hosts(); ++host)
    if (const std::string& refusal = refusals[static_cast<std::size_t>(host)]; !refusal.empty())
      return {{}, fmt::format("on the host of rank {}: {}", map.ranks(host).front(), refusal)};
  return {memory_.add(std::move(allocation.memory)), {}};
}

}  // namespace lockstep::comm
