// A store that notes the keys that are written, to count those that are left.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/job/store/store.h"

namespace lockstep::test {

// Several processes may use the same store and `log`.
class LoggedStore final : public Store {
 public:
  LoggedStore(std::shared_ptr<Store> store, std::filesystem::path log)
      : store_(std::move(store)), path_(std::move(log)), log_(path_, std::ios::app) {}

  void set(std::string_view key, std::string_view value) override {
    note(key);
    store_->set(key, value);
  }
  std::optional<std::string> find(std::string_view key) override { return store_->find(key); }
  std::string wait(std::string_view key, Deadline deadline) override {
    return store_->wait(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    note(key);
    return store_->add(key, amount);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    note(key);
    return store_->compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return store_->erase(key); }

  // The keys that exist now.
  std::set<std::string> keys() {
    std::set<std::string> keys;
    std::ifstream log(path_);
    for (std::string key; std::getline(log, key);)
      if (store_->find(key)) keys.insert(key);
    return keys;
  }

 private:
  void note(std::string_view key) {
    const std::lock_guard lock(mutex_);
    log_ << (std::string(key) + "\n") << std::flush;
  }

  const std::shared_ptr<Store> store_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  std::ofstream log_;
};

}  // namespace lockstep::test
