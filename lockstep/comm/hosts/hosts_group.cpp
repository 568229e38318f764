// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_group.h"

#include <fmt/format.h>

#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"

namespace lockstep::comm {
namespace {

// Beyond the collective's time limit: ranks that wait for late ranks at its start report them
// first.
constexpr std::chrono::milliseconds grace{3000};

std::vector<int> places_of(const HostsContext& context, const std::vector<int>& ranks) {
  std::vector<int> places;
  for (const int rank : ranks) places.push_back(context.places[static_cast<std::size_t>(rank)]);
  return places;
}

HostMap map_for(const HostsContext& context, const std::vector<int>& ranks, int rank) {
  return {context.shares_memory ? places_of(context, ranks) : ranks, rank};
}

// Other ranks may have a group with the same name.
std::string channel_name(const std::string& group, const std::vector<int>& ranks) {
  return fmt::format("{} of ranks {}", group, fmt::join(ranks, ","));
}

Backend::Place place_in(const HostMap& map) { return {map.local_rank(), map.local_size()}; }

}  // namespace

HostsGroup::HostsGroup(std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank,
                       std::string name, std::chrono::milliseconds timeout,
                       std::function<void()> watch)
    : context_(std::move(context)),
      ranks_(std::move(ranks)),
      rank_(rank),
      name_(std::move(name)),
      map_(map_for(*context_, ranks_, rank)),
      place_(place_in(HostMap(places_of(*context_, ranks_), rank))),
      local_(std::make_shared<ShmBackend>(
          context_->job->among(in_the_job(map_.ranks(map_.host())), map_.ranks(map_.host())), name_,
          timeout, std::move(watch))),
      channels_(context_->connections->open(channel_name(name_, ranks_), ranks_)) {
  channels_->on_abort([here = std::weak_ptr(local_)](const AbortReason& why) {
    if (const auto strong = here.lock()) strong->abort_too(why);
  });
  channels_->on_question([here = std::weak_ptr(local_)] {
    if (const auto strong = here.lock()) strong->report_absent();
  });
}

std::vector<int> HostsGroup::in_the_job(const std::vector<int>& ranks) const {
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(ranks_[static_cast<std::size_t>(rank)]);
  return members;
}

const RemoteRank& HostsGroup::who(int rank) const {
  return context_->ranks[static_cast<std::size_t>(ranks_[static_cast<std::size_t>(rank)])];
}

std::string HostsGroup::describe(const Collective& collective) const {
  return describe_call(collective, name_, rank_);
}

void HostsGroup::throw_if_over(const Collective& collective) const {
  local_->throw_if_over(describe(collective));
}

void HostsGroup::throw_if_explained(const Collective& collective) const {
  constexpr std::chrono::milliseconds time_for_reason{1000};
  constexpr std::chrono::milliseconds pause{20};
  for (const Deadline patience = in(time_for_reason); Clock::now() < patience;
       std::this_thread::sleep_for(pause))
    throw_if_over(collective);
}

HostsCall::HostsCall(const HostsGroup& hosts, const Collective& collective)
    : group(hosts),
      outer(collective),
      dtype(collective.signature.dtype),
      deadline(in(longer_by(collective.timeout, grace))),
      sums(collective.signature.op == ReduceOp::average ? ReduceOp::sum : collective.signature.op),
      averages(reduces(collective.signature.operation) &&
               collective.signature.op == ReduceOp::average),
      root_host(hosts.map().host_of(collective.signature.root)),
      root_is_here(root_host == hosts.map().host()),
      local_root(hosts.map().local_rank_of(collective.signature.root)) {}

Counts HostsCall::counts() const {
  if (!outer.counts.empty()) return {outer.counts.begin(), outer.counts.end()};
  return Counts(static_cast<std::size_t>(group.size()), outer.signature.count);
}

Collective HostsCall::step(Operation operation, const Buffer& input, const Buffer& output,
                           const Counts& counts, int root) const {
  Collective step;
  step.signature = {.count = counts.empty()
                                 ? output.count
                                 : std::accumulate(counts.begin(), counts.end(), std::size_t{0}),
                    .layout = counts.empty() ? 0 : hash_of(counts.data(), counts.size() * 8),
                    .root = root,
                    .operation = operation,
                    .dtype = output.dtype,
                    .op = sums};
  step.sequence = outer.sequence;
  step.input = input;
  step.output = output;
  step.counts = counts;
  return step;
}

void HostsCall::on_host(Operation operation, const Buffer& input, const Buffer& output,
                        const Counts& counts, int root) const {
  Collective mine = step(operation, input, output, counts, root);
  if (mine.signature.count == 0) return;
  mine.timeout = until(deadline);
  ShmBackend& local = *group.local();
  local.enter(mine);
  for (int peer = 0; peer < group.map().local_size(); ++peer)
    check(local.entered(peer) == mine.signature,
          "ranks of a host took different steps within a collective");
  local.run(mine);
}

}  // namespace lockstep::comm
