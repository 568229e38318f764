// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/connections_rig.h"

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

namespace lockstep::test {

struct HeardFailures::State {
  std::mutex mutex;
  std::condition_variable heard;
  std::vector<Failure> failures;
};

std::shared_ptr<HeardFailures::State> HeardFailures::make_state() {
  return std::make_shared<State>();
}

std::function<void(const Failure&)> HeardFailures::listener() {
  return [state = state_](const Failure& failure) {
    const std::lock_guard lock(state->mutex);
    state->failures.push_back(failure);
    state->heard.notify_all();
  };
}

std::optional<Failure> HeardFailures::await_first(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  const bool any =
      state_->heard.wait_until(lock, deadline, [&] { return !state_->failures.empty(); });
  return any ? std::optional(state_->failures.front()) : std::nullopt;
}

std::vector<Failure> HeardFailures::all() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failures;
}

JobMember member_of(int rank, int world_size) {
  return {.job_id = "connections-test", .rank = rank, .world_size = world_size};
}

ConnectionTeam::ConnectionTeam(int size, const std::string& listen_on)
    : heard_(static_cast<std::size_t>(size)) {
  for (int rank = 0; rank < size; ++rank) {
    connections_.push_back(std::make_unique<comm::Connections>(comm::Connections::Options{
        .member = member_of(rank, size),
        .listen_on = listen_on,
        .on_failure = heard_[static_cast<std::size_t>(rank)].listener()}));
    addresses_.push_back(connections_.back()->address());
  }
}

std::vector<comm::RemoteRank> ConnectionTeam::remote(int rank) const {
  std::vector<comm::RemoteRank> ranks;
  for (int other = 0; other < size(); ++other)
    if (other != rank)
      ranks.push_back({.rank = other,
                       .host = "host" + std::to_string(other),
                       .pid = 100 + other,
                       .address = addresses_[static_cast<std::size_t>(other)]});
  return ranks;
}

void ConnectionTeam::connect() {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank)
    threads.emplace_back([this, rank] {
      (*this)[rank].connect(remote(rank), in(std::chrono::seconds(20)), nothing);
    });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::shared_ptr<comm::Channels>> ConnectionTeam::open(const std::string& name) {
  std::vector<int> ranks(connections_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<comm::Channels>> groups;
  for (const auto& connections : connections_) groups.push_back(connections->open(name, ranks));
  return groups;
}

void nothing() {}

}  // namespace lockstep::test
