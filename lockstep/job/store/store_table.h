// The map behind every store of this library: defines its operations and its limits.
//
// Thread safety: the owner guards it.
// Errors: misuse and system as in store.h; the table is then unchanged.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

class StoreTable {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  void set(std::string_view key, std::string_view value);
  const std::string* find(std::string_view key) const;  // Null when there is nothing.
  std::int64_t add(std::string_view key, std::int64_t amount);
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool erase(std::string_view key);

  const Values& values() const { return values_; }
  std::size_t bytes() const { return bytes_; }  // Total of keys and values.

 private:
  Values values_;
  std::size_t bytes_ = 0;
};

// Errors: misuse when it is too long.
void require_store_key(std::string_view key);
void require_store_value(std::string_view key, std::string_view value);

// Returns a key for messages: at most 64 characters, all safe for a terminal.
std::string quoted(std::string_view key);

// Returns the message without fault and source location, for an Error that wraps it.
std::string bare_message(const Error& error);

// Throws the error of every store's wait() at its deadline.
[[noreturn]] void throw_wait_timeout(std::string_view key, Clock::time_point start);

}  // namespace lockstep
