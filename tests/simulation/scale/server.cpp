// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/server.h"

#include <algorithm>
#include <utility>

#include "lockstep/job/store/handshake.h"

namespace lockstep::simulation {
namespace {

constexpr std::size_t accepts_at_a_time = 32;
constexpr std::size_t most_unauthenticated = 64;
constexpr std::size_t longest_queue = 4096;  // SOMAXCONN of Linux.
constexpr std::chrono::seconds last_pause{3};

}  // namespace

Time& Cpu::first() { return *std::min_element(free_at_.begin(), free_at_.end()); }

Time Cpu::run(Time now, Duration work) {
  Time& core = first();
  core = std::max(core, now) + work;
  return core;
}

Traffic Traffic::since(const Traffic& before) const {
  return {messages_in - before.messages_in, messages_out - before.messages_out,
          bytes_in - before.bytes_in, bytes_out - before.bytes_out};
}

Time Network::receive(Time sent, std::size_t bytes, bool counts) {
  traffic_.messages_in += counts ? 1 : 0;
  traffic_.bytes_in += counts ? static_cast<std::int64_t>(bytes) : 0;
  in_busy_ = std::max(in_busy_, sent + nanoseconds_of(costs_.latency_ns)) + length(bytes);
  return in_busy_;
}

Time Network::send(Time sent, std::size_t bytes, bool counts) {
  traffic_.messages_out += counts ? 1 : 0;
  traffic_.bytes_out += counts ? static_cast<std::int64_t>(bytes) : 0;
  out_busy_ = std::max(out_busy_, sent) + length(bytes);
  return out_busy_ + nanoseconds_of(costs_.latency_ns);
}

Server::Server(Simulation& simulation, const Costs& costs, Place place, std::uint64_t seed)
    : simulation_(simulation),
      costs_(costs),
      place_(place),
      network_(costs),
      door_{.random = Random(seed)} {}

Server::Connection& Server::at(Peer peer) {
  const auto i = static_cast<std::size_t>(peer);
  if (i >= connections_of_.size()) connections_of_.resize(i + 1);
  return connections_of_[i];
}

// --- Connections ---------------------------------------------------------------------------------

void Server::connect(Peer peer, std::function<void()> connected) {
  Connection& connection = at(peer);
  connection = {.state = State::connecting,
                .number = connection.number + 1,
                .retry = place_.first_retry,
                .connected = std::move(connected)};
  simulation_.at(work(nanoseconds_of(costs_.client_connect / 2)),
                 [this, peer] { knock(peer, std::chrono::seconds(1)); });
}

// The first packet of a connection.
void Server::knock(Peer peer, std::chrono::seconds pause) {
  const int number = at(peer).number;
  simulation_.at(
      network_.receive(simulation_.now(), 0, /*counts=*/false), [this, peer, pause, number] {
        const Connection& connection = at(peer);
        if (connection.number != number || connection.state != State::connecting) return;
        if (door_.listening.size() < longest_queue) {
          door_.listening.emplace_back(peer, number);
          return turn_at(simulation_.now());
        }
        // Without an answer for 6 s, the client begins again.
        const bool is_last = pause > std::chrono::seconds(2);
        if (!is_last) ++door_.refused;
        simulation_.after(is_last ? last_pause : pause, [this, peer, pause, number, is_last] {
          if (at(peer).number != number) return;
          if (is_last)
            retry(peer);
          else
            knock(peer, 2 * pause);
        });
      });
}

void Server::accept(Peer peer) {
  if (door_.unauthenticated.size() == most_unauthenticated) {
    const auto i = static_cast<std::size_t>(
        door_.random.between(0, static_cast<std::int64_t>(door_.unauthenticated.size()) - 1));
    const Peer dropped = door_.unauthenticated[i];
    door_.unauthenticated.erase(door_.unauthenticated.begin() + static_cast<std::ptrdiff_t>(i));
    retry(dropped);
  }
  charge(costs_.server_connect / 2);
  Connection& connection = at(peer);
  connection.state = State::challenged;
  door_.unauthenticated.push_back(peer);
  reply(peer, challenge_bytes, [this, peer, number = connection.number] { greet(peer, number); });
}

void Server::greet(Peer peer, int number) {
  if (at(peer).number != number) return;
  simulation_.at(work(nanoseconds_of(costs_.client_connect / 2)), [this, peer, number] {
    const Connection& connection = at(peer);
    if (connection.number != number || connection.state != State::challenged) return;
    send(peer, hello_bytes, [this, peer] { admit(peer); });
  });
}

void Server::admit(Peer peer) {
  charge(costs_.server_connect / 2);
  std::erase(door_.unauthenticated, peer);
  Connection& connection = at(peer);
  connection.state = State::admitted;
  door_.most_connections = std::max(door_.most_connections, ++door_.connections);
  on_admitted(peer);
  reply(peer, verdict_bytes, [this, peer] {
    if (at(peer).connected) at(peer).connected();
  });
}

// The client finds its connection closed.
void Server::retry(Peer peer) {
  ++door_.refused;
  Connection& connection = at(peer);
  const auto pause = connection.retry;
  connection.state = State::connecting;
  connection.inbox.clear();
  connection.retry = std::min(2 * pause, place_.longest_retry);
  const int number = ++connection.number;
  simulation_.after(pause + nanoseconds_of(costs_.latency_ns), [this, peer, number] {
    if (at(peer).number != number) return;
    simulation_.at(work(nanoseconds_of(costs_.client_connect / 2)),
                   [this, peer] { knock(peer, std::chrono::seconds(1)); });
  });
}

void Server::cut(Peer peer) {
  Connection& connection = at(peer);
  ++connection.number;
  if (connection.state == State::admitted) connection.state = State::cut;
}

void Server::close(Peer peer) {
  Connection& connection = at(peer);
  if (connection.state != State::admitted && connection.state != State::cut) return;
  connection.state = State::closed;
  connection.inbox.clear();
  ++connection.number;
  --door_.connections;
}

// --- Frames --------------------------------------------------------------------------------------

void Server::send(Peer peer, std::size_t bytes, std::function<void()> read, bool counts) {
  simulation_.at(network_.receive(simulation_.now(), bytes, counts),
                 [this, peer, number = at(peer).number, read = std::move(read)]() mutable {
                   if (at(peer).number == number) arrive(peer, std::move(read));
                 });
}

void Server::arrive(Peer peer, std::function<void()> read) {
  Connection& connection = at(peer);
  connection.inbox.push_back(std::move(read));
  if (!std::exchange(connection.is_ready, true)) ready_.push_back(peer);
  turn_at(simulation_.now());
}

void Server::reply(Peer peer, std::size_t bytes, std::function<void()> arrives, bool counts) {
  simulation_.at(network_.send(clock(), bytes, counts),
                 [this, peer, number = at(peer).number, arrives = std::move(arrives)] {
                   const Connection& connection = at(peer);
                   if (connection.number == number && connection.state != State::cut) arrives();
                 });
}

void Server::read(Peer peer) {
  at(peer).is_ready = false;
  for (const auto& act : std::exchange(at(peer).inbox, {})) act();
}

// --- Iterations ----------------------------------------------------------------------------------

void Server::turn_at(Time time) {
  const Time when = std::max(time, turn_.busy_until);
  if (turn_.next && *turn_.next <= when) return;
  turn_.next = when;
  simulation_.at(when, [this, when] {
    if (turn_.next == when) turn();
  });
}

std::vector<Server::Peer> Server::take_ready() {
  const auto count = static_cast<std::ptrdiff_t>(std::min(ready_.size(), place_.most_events));
  std::vector<Peer> peers(ready_.begin(), ready_.begin() + count);
  ready_.erase(ready_.begin(), ready_.begin() + count);
  return peers;
}

void Server::turn() {
  turn_.next.reset();
  turn_.begun = place_.cpu.begin(simulation_.now());
  turn_.spent = nanoseconds_of(cost_of_turn());
  for (const Peer peer : take_ready()) read(peer);
  for (std::size_t i = 0; i < accepts_at_a_time && !door_.listening.empty(); ++i) {
    const auto [peer, number] = door_.listening.front();
    door_.listening.pop_front();
    if (at(peer).number == number) accept(peer);
  }
  end_turn();
  turn_.busy_until = place_.cpu.run(turn_.begun, turn_.spent);
  if (!ready_.empty() || !door_.listening.empty()) turn_at(turn_.busy_until);
}

}  // namespace lockstep::simulation
