// The files of a folder as samples in shards: the work of `lockstep shard`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lockstep {

struct ShardFolderOptions {
  std::filesystem::path folder;  // With the files.
  std::filesystem::path out;     // Folder of the shards; created if necessary.
  std::string name = "shard";
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  std::size_t samples = 0;  // Of a shard; 0: as many as shard_bytes allows.
  bool labels = false;      // Top-level folders are classes: samples with images get their number.
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool replace = false;  // Of shards that exist; those of a larger run are removed.

  // Called after each shard with the number of all, and of the samples in this one.
  std::function<void(std::size_t shards, std::size_t samples)> at_shard = {};
};

struct ShardFolderReport {
  std::size_t samples = 0;
  std::size_t shards = 0;
  std::size_t kept = 0;     // Shards that an earlier run has written.
  std::size_t removed = 0;  // Shards of an earlier run beyond the last one.
  std::uint64_t bytes = 0;  // Of all shards.
  std::size_t classes = 0;
  std::size_t left_out = 0;         // Files that belong to no sample.
  std::string first_left_out = {};  // The path of one of them.
};

// Writes the shards and indexes that are not there yet. With labels, NAME-classes.txt lists the
// classes. Unfinished files that killed processes of this host have left are removed. Errors:
// misuse for files that fit no sample, for shards of another run, and for files that were changed
// since their shard was written; system.
ShardFolderReport shard_folder(const ShardFolderOptions& options);

}  // namespace lockstep
