// A simulated server with one thread: connections, handshakes and frames cost CPU time, and queue.
//
// As TcpStoreServer's and the coordinating agent's loops: each iteration serves the connections
// with data, then accepts up to 32 more. At most 64 are in the handshake; a further one replaces a
// random one, whose client tries again. A full queue of the listener loses a client's packet, which
// its kernel repeats after 1 and 2 s.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tests/simulation/random.h"
#include "tests/simulation/scale/costs.h"
#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

inline Duration nanoseconds_of(double ns) { return Duration(static_cast<std::int64_t>(ns)); }

// Cores that processes share; work takes the core that is free first.
class Cpu {
 public:
  explicit Cpu(int cores) : free_at_(static_cast<std::size_t>(cores)) {}

  Time begin(Time now) { return std::max(now, first()); }
  // Returns the end of work that begins at `now` at the earliest.
  Time run(Time now, Duration work);

 private:
  Time& first();

  std::vector<Time> free_at_;
};

// Messages through the network interface of the coordinator's host, without heartbeats.
struct Traffic {
  std::int64_t messages_in = 0;
  std::int64_t messages_out = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;

  Traffic since(const Traffic& before) const;
};

// The coordinator's host's network interface. Each direction has the bandwidth of Costs.
class Network {
 public:
  explicit Network(const Costs& costs) : costs_(costs) {}

  // Time at which a frame arrives that leaves at `sent`.
  Time receive(Time sent, std::size_t bytes, bool counts);
  Time send(Time sent, std::size_t bytes, bool counts);

  const Traffic& traffic() const { return traffic_; }

 private:
  Duration length(std::size_t bytes) const {
    return nanoseconds_of(8.0 * static_cast<double>(bytes) / costs_.gigabits);
  }

  const Costs costs_;
  Traffic traffic_;
  Time in_busy_ = {};
  Time out_busy_ = {};
};

struct ServerPlace {
  Cpu& cpu;
  // The clients' cores; null if each client has a host of its own.
  Cpu* clients = nullptr;
  std::chrono::milliseconds first_retry{10};
  std::chrono::milliseconds longest_retry{500};
  std::size_t most_events = 64;  // Connections served in one iteration.
};

struct ServerConnection {
  enum class State { closed, connecting, challenged, admitted, cut };

  State state = State::closed;
  int number = 0;  // Messages of this peer's earlier connections are ignored.
  bool is_ready = false;
  std::chrono::milliseconds retry{0};
  std::deque<std::function<void()>> inbox = {};
  std::function<void()> connected = {};
};

// Clients that are not admitted yet, and counts of connections.
struct ServerDoor {
  Random random;
  std::deque<std::pair<int, int>> listening = {};  // Peers, and numbers of their connections.
  std::vector<int> unauthenticated = {};
  int connections = 0;
  int most_connections = 0;
  std::int64_t refused = 0;
};

// The current iteration of a server's loop, and the next one.
struct ServerTurn {
  Time begun = {};
  Duration spent{0};
  Time busy_until = {};
  std::optional<Time> next = {};
};

class Server {
 public:
  using Peer = int;
  using Place = ServerPlace;

  Server(Simulation& simulation, const Costs& costs, Place place, std::uint64_t seed);
  virtual ~Server() = default;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // A client connects, and tries again until the server has accepted it.
  void connect(Peer peer, std::function<void()> connected);

  // A connected client sends a frame; the server then calls `read` in one of its iterations.
  void send(Peer peer, std::size_t bytes, std::function<void()> read, bool counts = true);

  // The client's host has vanished: nothing more arrives from it or at it.
  void cut(Peer peer);

  // A client's work. Returns its end.
  Time work(Duration cost) {
    return place_.clients == nullptr ? simulation_.now() + cost
                                     : place_.clients->run(simulation_.now(), cost);
  }

  const Traffic& traffic() const { return network_.traffic(); }
  int most_connections() const { return door_.most_connections; }
  std::int64_t refused() const { return door_.refused; }  // Connections that had to be repeated.

 protected:
  // --- Within an iteration

  virtual double cost_of_turn() const { return 0; }
  virtual void end_turn() {}
  // The peers to serve, in order.
  virtual std::vector<Peer> take_ready();
  virtual void on_admitted(Peer) {}

  void read(Peer peer);
  void charge(double ns) { turn_.spent += nanoseconds_of(ns); }
  // Sends a frame to a peer, which arrives there unless it is cut.
  void reply(Peer peer, std::size_t bytes, std::function<void()> arrives, bool counts = true);
  void close(Peer peer);

  // Time within the iteration.
  Time clock() const { return turn_.begun + turn_.spent; }
  void turn_at(Time time);
  bool is_one_process() const { return place_.clients != nullptr; }
  Time begin_of_turn() const { return turn_.begun; }
  std::size_t in_handshake() const { return door_.unauthenticated.size(); }

  Simulation& simulation() const { return simulation_; }
  const Costs& costs() const { return costs_; }

 private:
  using Connection = ServerConnection;
  using State = Connection::State;

  Connection& at(Peer peer);
  void knock(Peer peer, std::chrono::seconds pause);
  void arrive(Peer peer, std::function<void()> read);
  void accept(Peer peer);
  void greet(Peer peer, int number);
  void admit(Peer peer);
  void retry(Peer peer);
  void turn();

  Simulation& simulation_;
  const Costs costs_;
  const Place place_;
  std::vector<Connection> connections_of_;
  std::deque<Peer> ready_;
  Network network_;
  ServerDoor door_;
  ServerTurn turn_;
};

}  // namespace lockstep::simulation
