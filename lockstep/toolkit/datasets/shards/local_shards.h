// Shards on a local file system.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/toolkit/datasets/shards/shard_source.h"

namespace lockstep::datasets {

class LocalShards : public ShardSource {
 public:
  // An empty `index_folder` puts each index beside its shard.
  LocalShards(std::vector<std::string> paths, std::string index_folder,
              const TarOptions& options = {});

  std::size_t shards() const override { return paths_.size(); }
  const std::string& name(std::size_t shard) const override { return paths_[shard]; }
  std::string index_path(std::size_t shard) const override;
  bool provide_index(std::size_t shard, bool wait) override;
  std::shared_ptr<const OpenShard> open(std::size_t shard, const ShardIndexView& index) override;
  std::optional<std::uint64_t> capacity() const override { return std::nullopt; }
  void will_open(std::span<const std::size_t> /*shards*/) override {}  // The kernel reads ahead.

 private:
  std::shared_ptr<const OpenShard> open_or_keep(std::size_t shard);

  struct Kept {
    std::size_t shard;
    std::shared_ptr<const OpenShard> open;
  };

  const std::vector<std::string> paths_;
  const std::string index_folder_;
  const TarOptions options_;
  std::mutex mutex_;
  // Most recently used first. Opening costs a message on network file systems.
  std::list<Kept> kept_;
};

}  // namespace lockstep::datasets
