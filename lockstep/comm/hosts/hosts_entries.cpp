// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/pipe.h"

namespace lockstep::comm {
namespace {

// For ranks that can name the missing ones, which check every 20 ms.
constexpr std::chrono::milliseconds time_for_names{200};

// The round trip to another host.
constexpr std::chrono::milliseconds usual_way{1};

// A host's last rank and its signatures; one if all are equal.
std::string pack(std::int32_t last, const std::vector<Signature>& said) {
  const bool same = std::all_of(said.begin(), said.end(),
                                [&](const Signature& one) { return one == said.front(); });
  std::string text(reinterpret_cast<const char*>(&last), sizeof last);
  text.append(reinterpret_cast<const char*>(said.data()),
              (same ? 1 : said.size()) * sizeof said[0]);
  return text;
}

}  // namespace

HostsEntries::HostsEntries(const HostsGroup& group)
    : group_(group), map_(group.map()), said_(static_cast<std::size_t>(group.size())) {}

void HostsEntries::enter(const Collective& collective) {
  const Deadline deadline = in(collective.timeout);
  enter(collective, {deadline});
  const auto destroys = [](const Signature& one) { return one.operation == Operation::destroy; };
  if (std::ranges::all_of(said_, destroys)) hear_all_pairs(collective, deadline);
}

void HostsEntries::enter(const Collective& collective, Patience patience) {
  Collective saying = collective;
  saying.only_says = true;
  group_.local()->enter(saying);
  std::vector<Signature> here;
  for (int peer = 0; peer < map_.local_size(); ++peer)
    here.push_back(group_.local()->entered(peer));
  const std::vector<int>& neighbours = map_.ranks(map_.host());
  const auto last_here = group_.local()->last_to_enter();
  last_.reset();
  if (last_here) last_ = neighbours[static_cast<std::size_t>(*last_here)];
  const auto begin = Clock::now();
  const std::vector<std::string> said =
      exchange(pack(last_.value_or(group_.rank()), here), collective, patience);
  const bool has_waited = Clock::now() - begin > usual_way;
  for (int host = 0; host < map_.hosts(); ++host) {
    const std::optional<int> last = unpack(host, said[static_cast<std::size_t>(host)]);
    if (!last)
      throw Error(Fault::corrupt,
                  group_.describe(collective) + ": a host sent bytes that are not a signature");
    if (has_waited && host == slowest_host_) last_ = last;
  }
}

// Returns the host's last rank; empty for a text that pack() did not make.
std::optional<int> HostsEntries::unpack(int host, std::string_view text) {
  const std::vector<int>& members = map_.ranks(host);
  std::int32_t last = 0;
  if (text.size() < sizeof last) return std::nullopt;
  std::memcpy(&last, text.data(), sizeof last);
  text.remove_prefix(sizeof last);
  const std::size_t count = text.size() / sizeof(Signature);
  if (text.size() % sizeof(Signature) != 0 || (count != 1 && count != members.size()) ||
      std::ranges::find(members, last) == members.end())
    return std::nullopt;
  for (std::size_t i = 0; i < members.size(); ++i)
    std::memcpy(&said_[static_cast<std::size_t>(members[i])],
                text.data() + (count == 1 ? 0 : i) * sizeof(Signature), sizeof(Signature));
  return last;
}

// A rank without the labels asks no host for absent ranks: docs/protocol.md.
std::vector<std::string> HostsEntries::labels(const Collective& collective) {
  std::string here;
  for (const std::string& label : group_.local()->labels(collective)) here += label + '\0';
  const std::vector<std::string> said =
      exchange(here, collective, {in(collective.timeout), /*asks=*/false});
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

// A rank with all labels aborts the group. A rank that still receives would get the abort instead.
void HostsEntries::await_all(const Collective& collective) {
  Collective barrier = collective;
  barrier.signature = {.operation = Operation::barrier};
  try {
    enter(barrier, {in(barrier.timeout), /*asks=*/false});
  } catch (const Error&) {  // A rank had already come, and has left.
  }
}

std::vector<std::string> HostsEntries::exchange(const std::string& mine,
                                                const Collective& collective) {
  return exchange(mine, collective, {in(collective.timeout)});
}

std::vector<std::string> HostsEntries::exchange(const std::string& mine,
                                                const Collective& collective, Patience patience) {
  std::vector<std::string> said(static_cast<std::size_t>(map_.hosts()));
  said[static_cast<std::size_t>(map_.host())] = mine;
  if (map_.owns_slice()) {
    const std::vector<int> peers = map_.slice_ranks(map_.local_rank());
    for (const int peer : peers)
      if (peer != group_.rank()) group_.channels()->say(peer, mine);
    Clock::duration longest{0};
    for (int host = 0; host < map_.hosts(); ++host) {
      if (host == map_.host()) continue;
      const auto begin = Clock::now();
      said[static_cast<std::size_t>(host)] = hear(host, collective, patience);
      if (const auto waited = Clock::now() - begin; waited > longest) {
        longest = waited;
        slowest_host_ = host;
      }
    }
  }
  if (map_.local_size() > map_.slices()) share_on_host(said, collective);
  return said;
}

std::string HostsEntries::hear(int host, const Collective& collective, Patience patience) {
  return hear_from(map_.slice_ranks(map_.local_rank())[static_cast<std::size_t>(host)], collective,
                   patience);
}

std::string HostsEntries::hear_from(int peer, const Collective& collective, Patience patience) {
  const auto watch = [&] { group_.throw_if_over(collective); };
  if (auto said = group_.channels()->hear(peer, patience.deadline, watch)) return *std::move(said);
  if (group_.channels()->has_left(peer)) {
    watch();  // It has sent the reason before.
    throw error_of_the_left(group_.describe(collective), {peer}, group_.name(), std::nullopt);
  }
  const int host = map_.host_of(peer);
  if (patience.asks && map_.ranks(host).size() > 1) ask_who_is_absent(collective, host);
  throw Error(Fault::timeout,
              fmt::format("{}: {}", group_.describe(collective), describe_absent(collective, host)),
              map_.ranks(host));
}

// That host's ranks report which of them are missing (docs/protocol.md). If other hosts got our
// timeout before, they would report the whole host as missing.
void HostsEntries::ask_who_is_absent(const Collective& collective, int host) {
  group_.channels()->ask_who_is_absent(map_.ranks(host));
  constexpr std::chrono::milliseconds pause{2};
  for (const Deadline patience = in(time_for_names); Clock::now() < patience;
       std::this_thread::sleep_for(pause))
    group_.throw_if_over(collective);
}

// When two ranks have each other's entries, all earlier messages between them have arrived: the
// unreceived ones can be counted.
void HostsEntries::hear_all_pairs(const Collective& collective, Deadline deadline) {
  for (int peer = 0; peer < group_.size(); ++peer)
    if (map_.host_of(peer) != map_.host()) group_.channels()->say(peer, {});
  for (int peer = 0; peer < group_.size(); ++peer)
    if (map_.host_of(peer) != map_.host()) hear_from(peer, collective, {deadline});
}

std::string HostsEntries::describe_absent(const Collective& collective, int host) const {
  std::string absent;
  for (const int member : map_.ranks(host)) {
    const RemoteRank& who = group_.who(member);
    absent += fmt::format("{}rank {} (pid {} on {})", absent.empty() ? "" : " or ", member, who.pid,
                          who.host);
  }
  return fmt::format("{} did not come within {:.1f} s", absent,
                     static_cast<double>(collective.timeout.count()) / 1000);
}

// Before the calls are compared: the steps are the same for all.
void HostsEntries::share_on_host(std::vector<std::string>& said, const Collective& collective) {
  Collective sharing;
  sharing.sequence = collective.sequence;
  sharing.timeout = collective.timeout;
  const HostsCall call(group_, sharing);
  std::vector<std::uint64_t> lengths;
  std::string all;
  for (const std::string& text : said) {
    lengths.push_back(text.size());
    all += text;
  }
  lengths.push_back(static_cast<std::uint64_t>(slowest_host_));
  call.on_host(Operation::broadcast, {}, buffer_of(lengths), {});
  slowest_host_ = static_cast<int>(lengths.back());
  lengths.pop_back();
  all.resize(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
  call.on_host(Operation::broadcast, {},
               {.data = all.data(), .count = all.size(), .dtype = DType::uint8}, {});
  std::size_t begin = 0;
  for (std::size_t host = 0; host < said.size(); begin += lengths[host++])
    said[host] = all.substr(begin, lengths[host]);
}

}  // namespace lockstep::comm
