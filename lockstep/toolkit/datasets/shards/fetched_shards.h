// Shards that a command fetches into a cache on this host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/processes.h"
#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/toolkit/datasets/shards/fetch_command.h"
#include "lockstep/toolkit/datasets/shards/shard_cache.h"
#include "lockstep/toolkit/datasets/shards/shard_source.h"

namespace lockstep::datasets {

struct FetchPolicy {
  int attempts = 4;
  std::chrono::milliseconds pause = std::chrono::seconds(1);  // After the first failure.
  bool fetch_indexes = false;                                 // As in TarShardsOptions.
  TarOptions tar = {};

  // After attempt number `attempt`, from 1.
  std::chrono::milliseconds pause_after(int attempt) const;
};

class FetchedShards : public ShardSource {
 public:
  FetchedShards(std::vector<std::string> urls, FetchCommand command, ShardCache cache,
                const FetchPolicy& policy);

  // Kills a prefetching command. A forked child leaves the command and its thread running.
  ~FetchedShards() override;

  std::size_t shards() const override { return urls_.size(); }
  const std::string& name(std::size_t shard) const override { return urls_[shard]; }
  std::string index_path(std::size_t shard) const override;
  bool provide_index(std::size_t shard, bool wait) override;
  std::shared_ptr<const OpenShard> open(std::size_t shard, const ShardIndexView& index) override;
  std::optional<std::uint64_t> capacity() const override { return cache_.bytes(); }
  void will_open(std::span<const std::size_t> shards) override;

 private:
  std::string cached_name(std::size_t shard) const;
  bool has_index(std::size_t shard) const;
  bool provide_shard(std::size_t shard, Deadline deadline);
  void wait_for_shard(std::size_t shard);
  bool provide_fetched_index(std::size_t shard, Deadline deadline);
  void fetch(std::size_t shard, const std::string& url, const std::string& path,
             const std::function<void(const std::string& path)>& check);
  void check_shard(std::size_t shard, const std::string& path) const;
  Deadline fetch_deadline() const;
  bool is_stopped() const;
  bool is_fork() const { return process_ != this_process(); }
  void fetch_ahead();

  // Prefetching. The first will_open() starts the thread.
  struct Ahead {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::size_t> wanted;
    Thread thread;
  };

  const std::vector<std::string> urls_;
  const FetchCommand command_;
  const ShardCache cache_;
  const FetchPolicy policy_;
  const pid_t process_ = this_process();
  std::atomic<bool> stop_ = false;
  std::atomic<bool> has_warned_ = false;
  std::unique_ptr<Ahead> ahead_ = std::make_unique<Ahead>();
};

}  // namespace lockstep::datasets
