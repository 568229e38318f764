// The job's store in a simulation: the production server's service and its clients, on a network
// that delays, cuts and loses connections.
//
// A connection is like TCP: bytes arrive in order or not at all, and a cut delays them. There is no
// reconnection, as in TcpStore.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/job/store/store.h"
#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_service.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

// A host's link to the store.
struct Link {
  Duration latency = std::chrono::microseconds(100);
  int slowness = 1;
  Time slow_until = {};
  Time to_store_cut_until = {};
  Time from_store_cut_until = {};
};

class SimulatedServer {
 public:
  // Called after each change of the table, with the request.
  using OnChange = std::function<void(const Process& by, const job::StoreRequest& request)>;

  SimulatedServer(Simulation& simulation, Mutant mutant)
      : simulation_(simulation), mutant_(mutant) {}

  void add_host(Duration latency) { links_.push_back({.latency = latency}); }
  Link& link(int host) { return links_[static_cast<std::size_t>(host)]; }
  void set_on_change(OnChange act) { on_change_ = std::move(act); }

  const job::StoreTable& table() const { return service_.table(); }
  bool has_ended() const { return has_ended_; }
  std::uint64_t requests() const { return requests_; }

  // Ends all connections.
  void end();
  // A process has ended. Its kernel still delivers the bytes that it has sent.
  void close_connection(int process);
  void lose_connection(int process);

 private:
  friend class SimulatedStore;

  struct Answer {
    job::StoreReply::Kind kind = job::StoreReply::Kind::error;
    std::string bytes;
    std::int64_t number = 0;
    Fault fault = Fault::bug;
  };
  struct Pending {
    Task* task = nullptr;
    std::optional<Answer> answer;
  };
  struct Connection {
    Process* process = nullptr;
    bool is_lost = false;  // As the client knows.
    bool is_cut = false;   // Nothing arrives any more.
    Time last_request = {};
    Time last_reply = {};
    std::uint64_t next_id = 1;
    std::map<std::uint64_t, Pending> pending;
  };

  std::shared_ptr<Connection> connect(Process& process);
  void send(const std::shared_ptr<Connection>& connection, const job::StoreRequest& request);
  void handle(const std::shared_ptr<Connection>& connection, const std::string& frame);
  void deliver(job::StoreService::Client client, const std::string& frame);
  void receive(Connection& connection, const std::string& frame);
  Duration latency_of(Process& process);
  void lose(Connection& connection);

  Simulation& simulation_;
  const Mutant mutant_;
  job::StoreService service_;
  std::vector<Link> links_;
  std::map<job::StoreService::Client, std::shared_ptr<Connection>> connections_;  // By process.
  Time busy_until_ = {};
  bool has_ended_ = false;
  std::uint64_t requests_ = 0;
  OnChange on_change_ = [](const Process&, const job::StoreRequest&) {};
};

// A process's client.
class SimulatedStore final : public Store {
 public:
  SimulatedStore(Simulation& simulation, SimulatedServer& server, Process& process,
                 std::chrono::milliseconds timeout);

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;

 private:
  using Answer = SimulatedServer::Answer;

  std::optional<Answer> ask(job::StoreRequest request, std::string_view what, Deadline deadline);
  Answer call(const job::StoreRequest& request, std::string_view what);

  Simulation& simulation_;
  SimulatedServer& server_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<SimulatedServer::Connection> connection_;
};

}  // namespace lockstep::simulation
