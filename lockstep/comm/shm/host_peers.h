// Ranks that are processes of one host: they share memfds and watch each other through the job
// control block.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/shm/peers.h"
#include "lockstep/comm/shm/regions.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

class HostPeers final : public Peers {
 public:
  explicit HostPeers(std::shared_ptr<HostSession> session);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(slots_.size()); }
  int slot(int rank) const override { return slots_[static_cast<std::size_t>(rank)]; }
  RegionTable& regions() override { return *regions_; }
  SharedMemory offer(const std::string& key, std::size_t bytes, std::size_t reserved) override;
  void refuse(const std::string& key, std::string_view reason) override {
    session_->refuse(key, reason);
  }
  void withdraw(const std::string& key) noexcept override { session_->withdraw(key); }
  SharedMemory hand_out(const std::string& key, std::size_t bytes) override;
  SharedMemory fetch(int rank, const std::string& key, std::size_t bytes, Deadline deadline,
                     const std::function<void()>& check) override;
  SharedMemory deliver(int rank, const std::string& key, std::size_t bytes) override;
  SharedMemory take(const std::string& key, std::size_t bytes) override;
  void drop(const std::string& key) noexcept override { session_->drop(key); }
  Activity& activity(int rank) override { return session_->page().activity(slot(rank)); }
  bool may_read() const override { return true; }
  bool read(int rank, const Mark& mark, std::byte* to, std::uint64_t from,
            std::size_t bytes) override;
  void throw_if_lost(std::string_view context) override { session_->throw_if_peer_lost(context); }
  std::optional<Failure> why_left(int rank) override;
  int number(int rank) const override { return numbers_[static_cast<std::size_t>(rank)]; }
  bool is_part_of_group() const override { return is_part_; }
  std::string describe(int rank) override;
  std::optional<std::string> stall_of(int rank) override;
  std::shared_ptr<Peers> among(const std::vector<int>& ranks) override;
  // This host's part of a group; `numbers` are these ranks' numbers in that group.
  std::shared_ptr<Peers> among(const std::vector<int>& ranks, std::vector<int> numbers);

 private:
  struct Pulse {
    std::uint64_t heartbeat = 0;
    Clock::time_point changed = {};
    Clock::time_point looked = {};
  };

  HostPeers(std::shared_ptr<HostSession> session, std::shared_ptr<RegionTable> regions,
            std::vector<int> slots, std::vector<int> numbers, bool is_part);
  std::shared_ptr<Peers> make(const std::vector<int>& ranks, std::vector<int> numbers,
                              bool is_part) const;

  const std::shared_ptr<HostSession> session_;
  const std::shared_ptr<RegionTable> regions_;
  const std::vector<int> slots_;  // By rank.
  const std::vector<int> numbers_;
  const bool is_part_;
  int rank_ = 0;
  std::mutex mutex_;
  std::vector<Pulse> pulses_;
};

}  // namespace lockstep::comm
