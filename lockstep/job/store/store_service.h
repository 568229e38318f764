// Handles the requests of a store server: owns the table and the list of waits. No I/O.
//
// Thread safety: the server's one thread owns it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_table.h"

namespace lockstep {

class StoreService {
 public:
  using Client = std::uint64_t;
  // Receives whole frames; must not call back into the service.
  using Deliver = std::function<void(Client client, std::string frame)>;

  static constexpr std::size_t max_waits = 1024;  // Limit for one client.

  // Delivers the answer, unless the request must wait, and the answers to all waits that it ends.
  // Errors: corrupt when the client broke the rules: an id that waits already, or too many waits. A
  // refusal by the table is an answer, not an Error.
  void handle(Client client, const StoreRequest& request, const Deliver& deliver);

  // Removes the client; its waits end unanswered.
  void forget(Client client);

  const StoreTable& table() const { return table_; }

 private:
  using Waits = std::map<std::uint64_t, std::string>;  // From request to key.

  StoreReply answer(const StoreRequest& request);
  void wait(Client client, const StoreRequest& request, const Deliver& deliver);
  void cancel(Client client, std::uint64_t id);
  void end_waits(std::string_view key, const Deliver& deliver);

  StoreTable table_;
  std::map<Client, Waits> waits_;
  std::multimap<std::string, std::pair<Client, std::uint64_t>, std::less<>> waiters_;  // By key.
  std::string bytes_;  // Bytes that the current reply refers to.
};

}  // namespace lockstep
