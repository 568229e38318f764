// Ranks that are threads of one process: they share memory directly.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/peers.h"
#include "lockstep/comm/shm/regions.h"

namespace lockstep::comm {

class ThreadTeam {
 public:
  explicit ThreadTeam(int size);

  int size() const { return static_cast<int>(activities_.size()); }

  // `rank` makes no more calls, though others may wait for it.
  void lose(int rank);
  bool has_lost_a_rank() const;

 private:
  friend class ThreadPeers;
  struct Offer {
    SharedMemory memory;  // Null for a refusal.
    std::string refusal = {};
  };

  void offer(const std::string& key, Offer offer);
  void withdraw(const std::string& key);
  void deliver(const std::string& key, const SharedMemory& memory);
  SharedMemory take(const std::string& key);
  void drop(const std::string& key) noexcept;
  void hand_out(const std::string& key, const SharedMemory& memory);
  // Null until it is offered or handed out.
  SharedMemory find(const std::string& key);

  mutable std::mutex mutex_;
  std::condition_variable offered_;
  std::map<std::string, Offer> offers_;
  std::set<std::string> unwanted_;  // Keys of drop() that have not arrived.
  std::map<std::string, std::weak_ptr<std::byte>> handed_out_;
  std::vector<Activity> activities_;  // By rank.
  std::optional<Failure> failure_;    // The first one.
};

class ThreadPeers : public Peers {
 public:
  ThreadPeers(std::shared_ptr<ThreadTeam> team, int rank);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int slot(int rank) const override { return members_[static_cast<std::size_t>(rank)]; }
  RegionTable& regions() override { return *regions_; }
  SharedMemory offer(const std::string& key, std::size_t bytes, std::size_t reserved) override;
  void refuse(const std::string& key, std::string_view reason) override;
  void withdraw(const std::string& key) noexcept override { team_->withdraw(key); }
  SharedMemory hand_out(const std::string& key, std::size_t bytes) override;
  SharedMemory fetch(int rank, const std::string& key, std::size_t bytes, Deadline deadline,
                     const std::function<void()>& check) override;
  SharedMemory deliver(int rank, const std::string& key, std::size_t bytes) override;
  SharedMemory take(const std::string& key, std::size_t bytes) override;
  void drop(const std::string& key) noexcept override { team_->drop(key); }
  Activity& activity(int rank) override;
  bool may_read() const override { return false; }
  bool read(int, const Mark&, std::byte*, std::uint64_t, std::size_t) override { return false; }
  void throw_if_lost(std::string_view context) override;
  std::optional<Failure> why_left(int) override { return std::nullopt; }
  std::string describe(int rank) override;
  std::optional<std::string> stall_of(int) override { return std::nullopt; }
  std::shared_ptr<Peers> among(const std::vector<int>& ranks) override;

  // From now on, throw_if_lost() throws on all other ranks.
  void abandon() { team_->lose(slot(rank_)); }

 private:
  ThreadPeers(std::shared_ptr<ThreadTeam> team, std::shared_ptr<RegionTable> regions, int rank,
              std::vector<int> members);

  const std::shared_ptr<ThreadTeam> team_;
  const std::shared_ptr<RegionTable> regions_;
  const int rank_;
  const std::vector<int> members_;  // Ranks in the team, by rank here.
};

}  // namespace lockstep::comm
