// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/blame.h"

namespace lockstep {
namespace {

std::vector<int> places_of(const HostsContext& context, const std::vector<int>& ranks) {
  std::vector<int> places;
  for (const int rank : ranks) places.push_back(context.places[static_cast<std::size_t>(rank)]);
  return places;
}

HostMap map_for(const HostsContext& context, const std::vector<int>& ranks, int rank) {
  return {context.shares_memory ? places_of(context, ranks) : ranks, rank};
}

Backend::Place place_in(const HostMap& map) { return {map.local_rank(), map.local_size()}; }

std::vector<int> on_this_host(const HostMap& map, const std::vector<int>& ranks) {
  std::vector<int> here;
  for (const int member : map.ranks(map.host()))
    here.push_back(ranks[static_cast<std::size_t>(member)]);
  return here;
}

// What a host's ranks say: one signature when all say the same.
std::string pack(const std::vector<Signature>& said) {
  const bool same = std::all_of(said.begin(), said.end(),
                                [&](const Signature& one) { return one == said.front(); });
  return {reinterpret_cast<const char*>(said.data()), (same ? 1 : said.size()) * sizeof said[0]};
}

}  // namespace

HostsBackend::HostsBackend(std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank,
                           std::string group, std::chrono::milliseconds timeout,
                           std::function<void()> watch)
    : context_(std::move(context)),
      ranks_(std::move(ranks)),
      rank_(rank),
      group_(std::move(group)),
      timeout_(timeout),
      map_(map_for(*context_, ranks_, rank)),
      here_(place_in(HostMap(places_of(*context_, ranks_), rank))),
      local_(std::make_shared<ShmBackend>(
          context_->job->among(on_this_host(map_, ranks_), map_.ranks(map_.host())), group_,
          timeout, std::move(watch))),
      lines_(context_->lines->open(group_, ranks_)),
      pipes_(map_, rank_, static_cast<int>(ranks_.size()), local_, lines_),
      mailbox_(pipes_, group_),
      said_(ranks_.size()) {
  lines_->on_give_up([here = std::weak_ptr(local_)](Fault fault, std::string_view reason) {
    if (const auto strong = here.lock()) strong->give_up_too(fault, reason);
  });
  if ((context_->engine.engine->abi->flags & LOCKSTEP_ENGINE_ORDERED) != 0) make_engines();
}

HostsBackend::~HostsBackend() {
  try {
    local_->throw_if_over("ending group " + group_);
  } catch (const Error&) {
    for (EngineCommunicator* engine : {slice_engine_.get(), engine_of_all_.get()})
      if (engine != nullptr) engine->expect_no_peers();
  }
}

std::unique_ptr<Backend> HostsBackend::among(const std::vector<int>& ranks,
                                             const std::string& group,
                                             std::chrono::milliseconds timeout) {
  std::vector<int> members;
  for (const int member : ranks) members.push_back(ranks_[static_cast<std::size_t>(member)]);
  auto watch = [this, group] { local_->throw_if_over("making group " + group); };
  const bool on_one_host = std::all_of(
      ranks.begin(), ranks.end(), [&](int member) { return map_.host_of(member) == map_.host(); });
  if (on_one_host)
    return std::make_unique<ShmBackend>(context_->job->among(members), group, timeout, watch);
  const auto me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  return std::make_unique<HostsBackend>(context_, std::move(members), static_cast<int>(me), group,
                                        timeout, watch);
}

void HostsBackend::give_up(Fault fault, std::string_view reason) {
  local_->give_up(fault, reason);
  lines_->give_up(fault, reason);
}

std::string HostsBackend::context(const Collective& collective) const {
  return fmt::format("{} #{} of group {} on rank {}",
                     lockstep::name(collective.signature.operation), collective.sequence, group_,
                     rank_);
}

void HostsBackend::throw_if_over(const Collective& collective) const {
  local_->throw_if_over(context(collective));
}

// An engine fails when a peer dies, and often before we have heard who it was.
void HostsBackend::throw_if_explained(const Call& call) const {
  constexpr std::chrono::milliseconds pause{20};
  for (const Deadline patience = in(time_for_news); Clock::now() < patience;
       std::this_thread::sleep_for(pause))
    throw_if_over(call.outer);
}

// --- What ranks say ------------------------------------------------------------------------------

void HostsBackend::enter(const Collective& collective) {
  const Deadline deadline = in(collective.timeout);
  if (collective.signature.operation == Operation::destroy) hear_all_pairs(collective, deadline);
  Collective saying = collective;
  saying.only_says = true;
  local_->enter(saying);
  std::vector<Signature> here;
  for (int peer = 0; peer < map_.local_size(); ++peer) here.push_back(local_->entered(peer));
  const std::vector<std::string> said = exchange(pack(here), collective, deadline);
  for (int host = 0; host < map_.hosts(); ++host) {
    const std::vector<int>& members = map_.ranks(host);
    const std::string& text = said[static_cast<std::size_t>(host)];
    const std::size_t count = text.size() / sizeof(Signature);
    if (text.size() % sizeof(Signature) != 0 || (count != 1 && count != members.size()))
      throw Error(Fault::corrupt, context(collective) + ": a host said what is no signature");
    for (std::size_t i = 0; i < members.size(); ++i)
      std::memcpy(&said_[static_cast<std::size_t>(members[i])],
                  text.data() + (count == 1 ? 0 : i) * sizeof(Signature), sizeof(Signature));
  }
}

// Each host says its ranks' labels, every one ended by a zero.
std::vector<std::string> HostsBackend::labels(const Collective& collective) {
  std::string here;
  for (const std::string& label : local_->labels(collective)) here += label + '\0';
  const std::vector<std::string> said = exchange(here, collective, in(collective.timeout));
  std::vector<std::string> all(said_.size());
  for (int host = 0; host < map_.hosts(); ++host) {
    std::string_view rest = said[static_cast<std::size_t>(host)];
    for (const int member : map_.ranks(host)) {
      const std::string_view label = rest.substr(0, rest.find('\0'));
      all[static_cast<std::size_t>(member)] = label;
      rest.remove_prefix(std::min(rest.size(), label.size() + 1));
    }
  }
  await_all(collective);
  return all;
}

// A rank that has all labels gives the group up. One that still listens would hear that instead.
void HostsBackend::await_all(const Collective& collective) {
  Collective barrier = collective;
  barrier.signature = {.operation = Operation::barrier};
  try {
    enter(barrier);
  } catch (const Error&) {  // Somebody was here already, and has left.
  }
}

// What each host says, where every rank of a host says the same. The owners of a slice tell each
// other, so that no rank has to pass the news on, and surplus ranks hear of it from rank 0 here.
std::vector<std::string> HostsBackend::exchange(const std::string& mine,
                                                const Collective& collective, Deadline deadline) {
  std::vector<std::string> said(static_cast<std::size_t>(map_.hosts()));
  said[static_cast<std::size_t>(map_.host())] = mine;
  if (map_.owns_slice()) {
    const std::vector<int> peers = map_.slice_ranks(map_.local_rank());
    for (const int peer : peers)
      if (peer != rank_) lines_->say(peer, mine);
    for (int host = 0; host < map_.hosts(); ++host)
      if (host != map_.host())
        said[static_cast<std::size_t>(host)] = hear(host, collective, deadline);
  }
  if (map_.local_size() > map_.slices()) share_on_host(said, collective);
  return said;
}

std::string HostsBackend::hear(int host, const Collective& collective, Deadline deadline) {
  return hear_from(map_.slice_ranks(map_.local_rank())[static_cast<std::size_t>(host)], collective,
                   deadline);
}

std::string HostsBackend::hear_from(int peer, const Collective& collective, Deadline deadline) {
  const auto watch = [&] { throw_if_over(collective); };
  if (auto said = lines_->hear(peer, deadline, watch)) return *std::move(said);
  const int host = map_.host_of(peer);
  const Error absent(Fault::timeout,
                     fmt::format("{}: {}", context(collective), describe_absent(collective, host)),
                     map_.ranks(host));
  if (map_.ranks(host).size() > 1) ask_who_is_absent(collective, absent);
  throw absent;
}

// Only the ranks of that host know who of them is missing. Those that wait for it there give up for
// the same reason as soon as they hear that we do, and name it.
void HostsBackend::ask_who_is_absent(const Collective& collective, const Error& absent) {
  lines_->give_up(Fault::timeout, reason_for(absent, rank_));
  constexpr std::chrono::milliseconds pause{2};
  for (const Deadline patience = in(time_for_names); Clock::now() < patience;
       std::this_thread::sleep_for(pause))
    throw_if_over(collective);
}

// Whatever two ranks have sent each other has come when they have heard of each other: how many of
// their messages nobody received is then known.
void HostsBackend::hear_all_pairs(const Collective& collective, Deadline deadline) {
  for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer)
    if (map_.host_of(peer) != map_.host()) lines_->say(peer, {});
  for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer)
    if (map_.host_of(peer) != map_.host()) hear_from(peer, collective, deadline);
}

std::string HostsBackend::describe_absent(const Collective& collective, int host) const {
  std::string absent;
  for (const int member : map_.ranks(host)) {
    const auto job_rank = static_cast<std::size_t>(ranks_[static_cast<std::size_t>(member)]);
    const RemoteRank& who = context_->ranks[job_rank];
    absent += fmt::format("{}rank {} (pid {} on {})", absent.empty() ? "" : " or ", member, who.pid,
                          who.host);
  }
  return fmt::format("{} did not come within {:.1f} s", absent,
                     static_cast<double>(collective.timeout.count()) / 1000);
}

// Before anybody has compared what ranks say: the steps are the same whatever that is.
void HostsBackend::share_on_host(std::vector<std::string>& said, const Collective& collective) {
  Collective sharing;
  sharing.sequence = collective.sequence;
  sharing.timeout = collective.timeout;
  const Call call(*this, sharing);
  std::vector<std::uint64_t> lengths;
  std::string all;
  for (const std::string& text : said) {
    lengths.push_back(text.size());
    all += text;
  }
  on_host(call, Operation::broadcast, {}, buffer_of(lengths), {});
  all.resize(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
  on_host(call, Operation::broadcast, {},
          {.data = all.data(), .count = all.size(), .dtype = DType::uint8}, {});
  std::size_t begin = 0;
  for (std::size_t host = 0; host < said.size(); begin += lengths[host++])
    said[host] = all.substr(begin, lengths[host]);
}

Backend::Allocation HostsBackend::allocate(const Collective& collective) {
  Allocation allocation = local_->allocate(collective);
  const std::vector<std::string> refusals =
      exchange(allocation.refusal, collective, in(collective.timeout));
  for (int host = 0; host < map_.hosts(); ++host)
    if (const std::string& refusal = refusals[static_cast<std::size_t>(host)]; !refusal.empty())
      return {{}, fmt::format("on the host of rank {}: {}", map_.ranks(host).front(), refusal)};
  return {kept_.add(std::move(allocation.memory)), {}};
}

}  // namespace lockstep
