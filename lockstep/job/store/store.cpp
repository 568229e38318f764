// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/store.h"

#include <condition_variable>
#include <mutex>

#include "lockstep/job/store/store_service.h"

namespace lockstep {

struct InProcessStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  job::StoreTable table;
};

InProcessStore::InProcessStore() : state_(std::make_unique<State>()) {}
InProcessStore::~InProcessStore() = default;

void InProcessStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(state_->mutex);
  state_->table.set(key, value);
  state_->changed.notify_all();
}

std::optional<std::string> InProcessStore::find(std::string_view key) {
  const std::lock_guard lock(state_->mutex);
  const job::StoreTable::Value value = state_->table.find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::string InProcessStore::wait(std::string_view key, Deadline deadline) {
  const auto start = Clock::now();
  std::unique_lock lock(state_->mutex);
  job::StoreTable::Value value;
  const auto is_there = [&] { return (value = state_->table.find(key)) != nullptr; };
  if (deadline == no_deadline)
    state_->changed.wait(lock, is_there);
  else if (!state_->changed.wait_until(lock, deadline, is_there))
    job::throw_wait_timeout(key, start);
  return *value;
}

std::int64_t InProcessStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard lock(state_->mutex);
  const std::int64_t sum = state_->table.add(key, amount);
  state_->changed.notify_all();
  return sum;
}

std::string InProcessStore::compare_set(std::string_view key, std::string_view expected,
                                        std::string_view desired) {
  const std::lock_guard lock(state_->mutex);
  std::string value = state_->table.compare_set(key, expected, desired);
  state_->changed.notify_all();
  return value;
}

bool InProcessStore::erase(std::string_view key) {
  const std::lock_guard lock(state_->mutex);
  return state_->table.erase(key);
}

}  // namespace lockstep
