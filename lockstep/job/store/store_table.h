// The map behind every store of ours: what its operations mean, and its limits, live here once.
//
// Thread safety: none; whoever owns one guards it.
// Errors: misuse and system as in store.h; the table is then as it was.

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
  std::size_t bytes() const { return bytes_; }  // Of keys and values.

 private:
  Values values_;
  std::size_t bytes_ = 0;
};

// Errors: misuse when it is too long.
void require_store_key(std::string_view key);
void require_store_value(std::string_view key, std::string_view value);

// A key for a message: at most 64 characters, of which none can harm a terminal.
std::string quoted(std::string_view key);

// What an Error says without its fault in front and its place behind, for one that wraps it.
std::string bare_message(const Error& error);

// What wait() of every store throws at its deadline.
[[noreturn]] void throw_wait_timeout(std::string_view key, Clock::time_point start);

}  // namespace lockstep
