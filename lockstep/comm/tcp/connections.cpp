// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/comm/tcp/connections_loop.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds first_pause{10};
constexpr std::chrono::milliseconds longest_pause{500};

SocketAddress address_of(const RemoteRank& remote) {
  const auto parts = host_and_port(remote.address);
  require(parts.has_value(),
          [&] { return fmt::format("rank {} has no address: {}", remote.rank, remote.address); });
  return numeric_address(parts->first, parts->second);
}

}  // namespace

Connections::Connections(Options options) : loop_(std::make_shared<Loop>(std::move(options))) {}

Connections::~Connections() { loop_->stop(); }

void Connections::begin_to_end() { loop_->begin_to_end(); }

std::string Connections::address() const { return loop_->address(); }

void Connections::connect(const std::vector<RemoteRank>& ranks, Deadline deadline,
                          const std::function<void()>& watch) {
  const auto start = Clock::now();
  loop_->expect(ranks);
  std::map<int, SocketAddress> addresses;
  for (const RemoteRank& remote : ranks)
    if (remote.rank > loop_->member().rank) addresses[remote.rank] = address_of(remote);
  for (auto pause = first_pause; Clock::now() < deadline;
       pause = std::min(2 * pause, longest_pause)) {
    for (const auto& [rank, address] : addresses) {
      if (loop_->peers().has_connection(rank)) continue;
      watch();
      loop_->try_to_connect(rank, address, deadline);
    }
    if (loop_->peers().await_all(std::min(deadline, in(pause)), watch)) return;
  }
  std::string missing;
  int count = 0;
  for (const RemoteRank& remote : ranks) {
    if (loop_->peers().is_up(remote.rank)) continue;
    ++count;
    missing +=
        fmt::format("{}rank {} (pid {} on {}, {}): {}", missing.empty() ? "" : "; ", remote.rank,
                    remote.pid, remote.host, remote.address, loop_->why_not_up(remote.rank));
  }
  throw Error(Fault::timeout, fmt::format("{} of {} ranks of other hosts could not be reached in "
                                          "{:.1f} s: {}",
                                          count, ranks.size(), seconds_since(start), missing));
}

// Other processes write the job control block too, and may write any number.
void Connections::tell_failure(const Failure& failure) {
  if (failure.rank < 0 || failure.rank >= loop_->member().world_size) return;
  const std::string bytes = encode_failure(failure);
  loop_->peers().send_to_all({.kind = Frame::Kind::failure, .bytes = bytes});
}

void Connections::finish() { loop_->peers().finish(); }

bool Connections::has_peers() const { return !loop_->peers().open_connections().empty(); }

std::shared_ptr<Channels> Connections::open(const std::string& name, std::vector<int> world_ranks) {
  const std::shared_ptr<GroupChannels> group = loop_->open(name, world_ranks);
  // The group may outlive the Connections, and then does nothing.
  return {group.get(), [group, loop = loop_](Channels*) { loop->close(*group); }};
}

}  // namespace lockstep::comm
