// Lists the files in a tar archive with libarchive. Skips their contents, except in compressed
// archives and sparse files.
// Formats: v7, ustar, pax and GNU tar, also compressed. Names are the bytes in the archive. Lists
// Python tarfile's regular files, in its order, and hard links to them as copies. Counts entries of
// other kinds as skipped, except folders and volume labels.
//
// Independent of LibTorch, for fuzzing.
// Errors: corrupt for other formats, damaged headers or compressed data, and a file beyond the end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/shards/archive_input.h"

namespace lockstep::datasets {

inline constexpr std::size_t tar_block = 512;

// A header block; numbers are octal. Frozen by POSIX.1-2001 (pax), GNU tar's manual ("Basic Tar").
struct TarHeader {
  std::array<char, 100> name;
  std::array<char, 8> mode;
  std::array<char, 8> uid;
  std::array<char, 8> gid;
  std::array<char, 12> size;
  std::array<char, 12> mtime;
  std::array<char, 8> checksum;
  char type;
  std::array<char, 100> link;
  std::array<char, 8> magic;  // "ustar", a zero, "00" in POSIX; "ustar", two spaces, a zero in GNU.
  std::array<char, 32> user;
  std::array<char, 32> group;
  std::array<char, 8> device_major;
  std::array<char, 8> device_minor;
  std::array<char, 155> prefix;
  std::array<char, 12> rest;
};
static_assert(sizeof(TarHeader) == tar_block);

inline constexpr std::string_view posix_magic{"ustar\00000", 8};
inline constexpr std::string_view gnu_magic{"ustar  \0", 8};

// Reads the checksum field as spaces.
std::uint32_t tar_checksum(const TarHeader& header);

constexpr std::uint64_t padded_to_blocks(std::uint64_t bytes) {
  return (bytes + tar_block - 1) / tar_block * tar_block;
}

// A range of a sparse file.
struct TarExtent {
  std::uint64_t at = 0;      // Offset in the file.
  std::uint64_t offset = 0;  // Offset in the archive.
  std::uint64_t size = 0;
};

struct TarMember {
  std::string name;
  std::uint64_t offset = 0;  // In bytes, after decompression.
  std::uint64_t size = 0;
  bool is_link = false;                 // To an earlier member.
  bool is_sparse = false;               // Bytes outside `extents` are zeros.
  std::vector<TarExtent> extents = {};  // In rising order.
};

struct TarOptions {
  // Continues after the end of an archive, as tar's --ignore-zeros.
  bool concatenated = false;
};

struct TarContents {
  std::vector<TarMember> members;
  bool concatenated = false;
  // Whether a final zero block exists. Not in an index.
  bool has_end = true;
  std::uint64_t decompressed_bytes = 0;  // 0 if not compressed.

  std::uint64_t skipped = 0;
  std::string first_skipped = {};  // "byte 1024: 'dev/null', a character device".
  // Describes data after the end, or a missing end. Empty if there is neither.
  std::string unread = {};

  // Why TarShardsOptions::strict rejects the archive.
  struct Refusal {
    Fault fault;
    std::string text;  // Begins with the byte's offset.
  };
  std::optional<Refusal> strict_refusal = {};
};

// `size`: of the archive. `file`: for messages.
TarContents read_tar(std::string_view file, std::uint64_t size, const ReadAt& read,
                     const TarOptions& options = {});

}  // namespace lockstep::datasets
