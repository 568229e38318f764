// The job's store on a simulated host: the production service and frames, and clients that ask for
// one thing after the other.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/job/store/store_service.h"
#include "tests/simulation/scale/server.h"

namespace lockstep::simulation {

class StoreHost final : public Server {
 public:
  struct Answer {
    job::StoreReply::Kind kind = job::StoreReply::Kind::error;
    std::shared_ptr<const std::string> bytes;
    std::int64_t number = 0;
  };
  using Then = std::function<void(const Answer&)>;

  StoreHost(Simulation& simulation, const Costs& costs, Place place)
      : Server(simulation, costs, place, simulation.seed()) {}

  // The client `peer` is connected. Calls `then` with the reply.
  std::uint64_t ask(Peer peer, job::StoreRequest request, Then then);

  // As TcpStore::wait(): calls `then` without a value at the limit.
  void wait(Peer peer, const std::string& key, std::chrono::milliseconds limit,
            std::function<void(const std::shared_ptr<const std::string>&)> then);

  const job::StoreTable& table() const { return service_.table(); }

 private:
  struct Client {
    std::uint64_t next_id = 1;
    std::vector<std::pair<std::uint64_t, Then>> pending = {};
  };

  Client& client(Peer peer);
  void handle(Peer peer, const std::string& frame);
  void deliver(Peer peer, const std::string& frame, bool ends_wait);
  void receive(Peer peer, std::uint64_t id, const Answer& answer);
  bool forget(Peer peer, std::uint64_t id);
  std::shared_ptr<const std::string> shared(std::string_view bytes);

  job::StoreService service_;
  std::vector<Client> clients_;
  std::shared_ptr<const std::string> latest_;  // Many clients get the same value.
};

}  // namespace lockstep::simulation
