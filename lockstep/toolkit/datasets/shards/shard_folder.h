// Packs the files of a folder into shards: the implementation of `lockstep shard`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep {

struct ShardFolderOptions {
  std::filesystem::path folder;
  std::filesystem::path out;  // Created if necessary.
  std::string name = "shard";
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  std::size_t samples = 0;  // Per shard, of any size; 0: as many as shard_bytes allows.
  bool labels = false;      // Top-level folders are classes, with numbers as labels.
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool replace = false;  // Existing shards, and removes those of an earlier, larger run.

  // Called after each shard, with the number of all shards, and of samples in this one.
  std::function<void(std::size_t shards, std::size_t samples)> at_shard = {};
};

struct ShardFolderReport {
  std::size_t samples = 0;
  std::size_t shards = 0;
  std::size_t kept = 0;     // Written by an earlier run.
  std::size_t removed = 0;  // From an earlier, larger run.
  std::uint64_t bytes = 0;
  std::size_t classes = 0;
  std::size_t left_out = 0;  // Files that belong to no sample.
  std::string first_left_out = {};
};

// Writes the missing shards and indexes. With labels, NAME-classes.txt lists the classes. Removes
// unfinished files of killed processes of this host.
// Errors: find_samples()'s, and system. Misuse if `out` lies in `folder`. Unless `replace`, misuse
// for shards of another run, and for files that changed after their shard was written.
ShardFolderReport shard_folder(const ShardFolderOptions& options);

}  // namespace lockstep
