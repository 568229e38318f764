// A small shared map through which ranks find each other before they can talk to each other.
//
//   TcpStore store({.host = "node1", .port = 29400, .member = {"job-7", rank, world_size}});
//   store.set("address/0", "node1:4711");
//   std::string peer = store.wait("address/1", in(std::chrono::seconds(30)));
//
// Keys and values are arbitrary bytes, of at most max_key_bytes and max_value_bytes; the map holds
// at most max_keys keys, and max_bytes of keys and values together. Each member takes effect at one
// instant, and all who share the map see these instants in one order.
// Thread safety: every member may be called from any thread at once.
// Blocking: wait() until its deadline; the others for as long as the way to the map takes, which
// each implementation limits.
// Errors: misuse for a key or value that is too long; system when the map is full; timeout, whose
// message names the key; peer_lost when the one who keeps the map is gone, for this and every later
// call; corrupt when what keeps the map is damaged. After a timeout of anything but wait() the
// change may be there or not.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"

namespace lockstep {

class LOCKSTEP_API Store {
 public:
  static constexpr std::size_t max_key_bytes = std::size_t{4} << 10;
  static constexpr std::size_t max_value_bytes = std::size_t{16} << 20;
  static constexpr std::size_t max_keys = 1'000'000;
  static constexpr std::size_t max_bytes = std::size_t{256} << 20;

  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;

  // What is there now; empty when there is nothing.
  virtual std::optional<std::string> find(std::string_view key) = 0;

  // The value, as soon as there is one: at once, also with a deadline that has passed, when there
  // is one already.
  virtual std::string wait(std::string_view key, Deadline deadline) = 0;

  // Adds to the number at `key`, where nothing counts as 0, and returns the sum, which is stored as
  // decimal text. Errors: misuse when something else than a number is there or the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;

  // Replaces the value by `desired` if it is `expected`, and returns what is there afterwards. As
  // in PyTorch, an absent key counts as equal to an empty `expected`; when `expected` is not empty,
  // an absent key stays absent and `expected` is returned.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;

  // Whether there was something.
  virtual bool erase(std::string_view key) = 0;
};

}  // namespace lockstep
