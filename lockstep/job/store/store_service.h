// The map behind every store of this library, and the service of a store server. No I/O.
//
// Thread safety: the owners synchronize.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"
#include "lockstep/job/store/store_protocol.h"

namespace lockstep::job {

// Errors: misuse and system as in store.h; the table is then unchanged.
class StoreTable {
 public:
  using Value = std::shared_ptr<const std::string>;
  using Values = std::map<std::string, Value, std::less<>>;

  void set(std::string_view key, std::string_view value);
  Value find(std::string_view key) const;  // Null if absent.
  std::int64_t add(std::string_view key, std::int64_t amount);
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool erase(std::string_view key);

  const Values& values() const { return values_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Values values_;
  std::size_t bytes_ = 0;
};

// Errors: misuse if too long.
void require_store_key(std::string_view key);
void require_store_value(std::string_view key, std::string_view value);

// For messages: cut after about 64 characters, safe for a terminal.
std::string in_quotes(std::string_view key);

[[noreturn]] void throw_wait_timeout(std::string_view key, Clock::time_point start);

class StoreService {
 public:
  using Client = std::uint64_t;
  // Receives complete frames; must not call back into the service.
  using Deliver = std::function<void(Client client, StoreFrame frame)>;

  static constexpr std::size_t max_waits = 1024;

  // Delivers the reply, unless the request must wait or cancels a wait, and the replies to all
  // waits that it ends.
  // Errors: corrupt if a client's new wait has a pending one's id, or exceeds max_waits. The
  // table's errors become replies.
  void handle(Client client, const StoreRequest& request, const Deliver& deliver);

  void forget(Client client);

  const StoreTable& table() const { return table_; }

 private:
  using Waits = std::map<std::uint64_t, std::string>;  // Request id to key.

  StoreFrame answer(const StoreRequest& request);
  void wait(Client client, const StoreRequest& request, const Deliver& deliver);
  void cancel(Client client, std::uint64_t id);
  void end_waits(std::string_view key, const Deliver& deliver);

  StoreTable table_;
  std::map<Client, Waits> waits_;
  std::multimap<std::string, std::pair<Client, std::uint64_t>, std::less<>> waiters_;
};

}  // namespace lockstep::job
