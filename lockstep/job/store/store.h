// A small shared map through which ranks find each other before they can talk to each other.
//
//   TcpStore store({.host = "node1", .port = 29400, .member = {"job-7", rank, world_size}});
//   store.set("address/0", "node1:4711");
//   std::string peer = store.wait("address/1", in(std::chrono::seconds(30)));
//
// Keys and values are arbitrary bytes, at most max_key_bytes and max_value_bytes long. The map
// holds at most max_keys keys, and max_bytes of keys and values together. Each member takes effect
// at one instant, and all users of the map see these instants in one order.
// Thread safety: any thread may call any member at any time.
// Blocking: wait() until its deadline. Other members for the access to the map, which each
// implementation limits.
// Errors: misuse for a key or value that is too long; system when the map is full; timeout, whose
// message names the key; peer_lost when the server of the map is gone, for this and every later
// call; corrupt when the map's file or server is damaged. After a timeout of any member but wait(),
// the change may or may not have been made.

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

  // Returns the current value; empty when there is none.
  virtual std::optional<std::string> find(std::string_view key) = 0;

  // Returns the value as soon as there is one. Returns an existing value at once, even after the
  // deadline.
  virtual std::string wait(std::string_view key, Deadline deadline) = 0;

  // Adds to the number at `key`, an absent key being 0, and returns the sum, stored as decimal
  // text. Errors: misuse when the value is not a number or the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;

  // Replaces the value by `desired` if it equals `expected`, and returns the value afterwards. As
  // in PyTorch, an absent key equals an empty `expected`. With another `expected`, an absent key
  // stays absent and `expected` is returned.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;

  // Returns whether the key was there.
  virtual bool erase(std::string_view key) = 0;
};

}  // namespace lockstep
