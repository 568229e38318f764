// A part of another store's map: the keys that begin with a prefix. Two users of one store can then
// not collide. The prefix counts towards the length of a key.
//
// Lifetime: the other store must outlive this one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "lockstep/job/store/store.h"

namespace lockstep {

class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override { store_.set(full(key), value); }
  std::optional<std::string> find(std::string_view key) override { return store_.find(full(key)); }
  std::string wait(std::string_view key, Deadline deadline) override {
    return store_.wait(full(key), deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return store_.add(full(key), amount);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return store_.compare_set(full(key), expected, desired);
  }
  bool erase(std::string_view key) override { return store_.erase(full(key)); }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  Store& store_;
  const std::string prefix_;
};

}  // namespace lockstep
