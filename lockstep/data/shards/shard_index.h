// The index of a shard: its samples, their parts, and where these lie in the tar.
//
// An index is made once from the tar's headers and kept as a file, which all ranks of a host map.
// Frozen, little-endian:
//   "LOCKSTEP SHARD 1"
//   u64 XXH3-64 of all that follows
//   u64 size of the shard, i64 time of its last change in ns, or 0 if only its size counts
//   u64 samples, u64 parts, u64 bytes of all names
//   u64 first part of each sample, then the number of parts
//   for each part: u64 offset in the shard, u64 size, u64 end of its name among the names
//   the names of all parts, as in the tar
//
// Torch-free, so that it can be fuzzed.
// Thread safety: const members may be called from several threads at once.
// Errors: corrupt, naming the index or the shard.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/mapped_file.h"
#include "lockstep/data/shards/tar_members.h"

namespace lockstep::data {

// Returns the index as its file has it. `shard` is for messages. Errors: corrupt, naming both
// files, for a sample with two parts of one suffix.
std::string format_shard_index(std::string_view shard, const FileStamp& stamp,
                               const std::vector<TarMember>& members);

// Place of the checksum in the index.
inline constexpr std::size_t shard_index_digest_at = 16;

// Path of the index that lies beside a shard.
std::string index_beside(const std::string& shard);

// Gives the file its name when it is complete. It may be lost in a power failure, as it can be made
// again. Errors: system.
void write_shard_index(const std::string& path, std::string_view index);

// A part of a sample in the shard.
struct ShardPart {
  std::string_view name;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

// A view of an index, which does not own its bytes.
class ShardIndexView {
 public:
  // Checks all numbers of the index. `bytes` begin at a multiple of eight.
  ShardIndexView(std::string_view file, std::span<const std::byte> bytes);

  const FileStamp& shard() const { return shard_; }
  std::uint64_t digest() const { return digest_; }  // The checksum in the index.

  // A number that differs between shards whose samples have other names, sizes or places, and is
  // the same for a copy with another time.
  std::uint64_t fingerprint() const;
  std::size_t samples() const { return firsts_.size() - 1; }
  std::string_view key(std::size_t sample) const;

  // Number of the sample's first part; of the one after the last part for samples().
  std::size_t first_part(std::size_t sample) const {
    return static_cast<std::size_t>(firsts_[sample]);
  }
  ShardPart part(std::size_t part) const;

 private:
  struct Entry {
    std::uint64_t offset;
    std::uint64_t size;
    std::uint64_t name_end;
  };
  void check_parts(std::string_view file) const;

  FileStamp shard_;
  std::uint64_t digest_ = 0;
  std::span<const std::byte> samples_bytes_;  // All that follows size and time of the shard.
  std::span<const std::uint64_t> firsts_;
  std::span<const Entry> entries_;
  std::string_view names_;
};

// An index and the file that has it.
class ShardIndex {
 public:
  explicit ShardIndex(const std::string& path) : file_(path), view_(path, file_.bytes()) {}

  const ShardIndexView& view() const { return view_; }
  const ShardIndexView* operator->() const { return &view_; }

 private:
  MappedFile file_;
  ShardIndexView view_;
};

// Reads the members of an open shard.
std::vector<TarMember> read_tar_members(const FileDescriptor& shard, const std::string& name);

}  // namespace lockstep::data
