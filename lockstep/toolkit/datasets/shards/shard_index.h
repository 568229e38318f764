// The index of a shard: its samples, their parts, and the parts' positions in the tar. All ranks of
// a host map its file. Frozen, little-endian:
//   "LOCKSTEP SHARD 2"
//   u64 XXH3-64 of all that follows
//   u64 size of the shard, i64 its modification time in ns, or 0 if only its size counts
//   u64 samples, u64 parts, u64 bytes of all names
//   u64 first part of each sample, then the number of parts
//   for each part: u64 offset in the shard, u64 size, u64 end of its name among the names
//   the names of all parts, as in the tar
// In version 2, the other members of TarContents follow at the next multiple of eight:
//   u64 decompressed bytes, or 0; u64 1 if the archive was read on after its end
//   u64 skipped entries, u64 Fault of a strict reader: 0 none, 1 corrupt, 2 unsupported
//   u64 extents, u64 bytes of each of the three texts
//   for each extent of a sparse part: u64 part, u64 place in it, u64 offset in the shard, u64 size;
//   a sparse part without bytes has one of size 0
//   the texts: first skipped entry, unread, refusal of a strict reader
// Version 1 describes plain archives that a strict reader accepts: readable, but is_for() returns
// false. Independent of LibTorch, for fuzzing.
// Thread safety: const members may be called concurrently.
// Errors: corrupt, naming the index or the shard.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/shards/tar_members.h"

namespace lockstep::datasets {

// The file's contents. Errors: corrupt for a sample's second part of a suffix, unless it is a link.
std::string format_shard_index(std::string_view shard, const FileStamp& stamp,
                               const TarContents& contents);

inline constexpr std::size_t shard_index_digest_at = 16;

inline constexpr int shard_index_version = 2;

std::string index_beside(const std::string& shard);

// Replaces the file atomically, without sync: after a power failure it is created again. Errors:
// system.
void write_shard_index(const std::string& path, std::string_view index);

struct ShardPart {
  std::size_t number = 0;  // Among the shard's parts.
  std::string_view name;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

// Does not own the bytes. Any version.
class ShardIndexView {
 public:
  // Validates all numbers. `bytes` must be aligned to 8.
  ShardIndexView(std::string_view file, std::span<const std::byte> bytes);

  const FileStamp& shard() const { return shard_; }

  // Whether this version of Lockstep would create the same index with these options. Other indexes
  // may divide the shard into other samples.
  bool is_for(const TarOptions& options) const;

  // As in TarContents. The texts may have any bytes.
  bool is_compressed() const { return decompressed_bytes_ != 0; }
  std::uint64_t skipped() const { return skipped_; }
  std::string_view first_skipped() const { return texts_[0]; }
  std::string_view unread() const { return texts_[1]; }

  // Errors: those of TarShardsOptions::strict, naming `shard`.
  void require_strict(std::string_view shard) const;

  // Depends on names, sizes and positions of samples, not on modification time and compression.
  std::uint64_t fingerprint() const;
  std::size_t samples() const { return firsts_.size() - 1; }
  std::string_view key(std::size_t sample) const;

  // For samples(), the number of all parts.
  std::size_t first_part(std::size_t sample) const {
    return static_cast<std::size_t>(firsts_[sample]);
  }
  ShardPart part(std::size_t part) const;

  // Stored bytes of a sparse part, in rising order; others are zeros. Empty for dense parts.
  struct Extent {
    std::uint64_t part;
    std::uint64_t at;
    std::uint64_t offset;
    std::uint64_t size;
  };
  std::span<const Extent> extents(std::size_t part) const;

  // Without the holes of a sparse part.
  std::uint64_t stored_bytes(const ShardPart& part) const;

 private:
  struct Entry {
    std::uint64_t offset;
    std::uint64_t size;
    std::uint64_t name_end;
  };
  void read_more(std::string_view file, std::span<const std::byte> bytes);
  void check_parts(std::string_view file) const;
  void check_extents(std::string_view file) const;
  std::uint64_t readable_bytes() const {
    return is_compressed() ? decompressed_bytes_ : shard_.size;
  }

  int version_ = shard_index_version;
  FileStamp shard_;
  std::span<const std::byte> samples_bytes_;  // From the number of samples to the names.
  std::span<const std::uint64_t> firsts_;
  std::span<const Entry> entries_;
  std::string_view names_;
  std::uint64_t decompressed_bytes_ = 0;
  std::uint64_t concatenated_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t strict_fault_ = 0;
  std::span<const Extent> extents_;
  std::array<std::string_view, 3> texts_;
};

class ShardIndex {
 public:
  explicit ShardIndex(const std::string& path) : file_(path), view_(path, file_.bytes()) {}

  const ShardIndexView& view() const { return view_; }
  const ShardIndexView* operator->() const { return &view_; }

 private:
  MappedFile file_;
  ShardIndexView view_;
};

TarContents read_tar(const FileDescriptor& shard, const std::string& name,
                     const TarOptions& options = {});

}  // namespace lockstep::datasets
