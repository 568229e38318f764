// Lists the files in a tar archive with libarchive, without reading their contents.
//
// Formats: v7, ustar, pax and GNU tar, each also compressed. Names are the bytes in the archive.
// Lists the files that Python's tarfile calls regular, in its order, and hard links to them as
// copies. Omits folders and volume labels; skips and counts all other entries.
//
// Does not depend on LibTorch, so that it can be fuzzed.
// Errors: corrupt, with file, byte, expected and found value, for a damaged header, a file beyond
// the end, and damaged compressed data.

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
#include "lockstep/data/shards/archive_input.h"

namespace lockstep::data {

inline constexpr std::size_t tar_block = 512;

// A header block; numbers are octal. Frozen (POSIX.1-2001, pax; GNU tar's manual, "Basic Tar").
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

// Sum of the header's bytes, with the checksum field read as spaces.
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
  bool is_sparse = false;               // Only `extents` are stored; all other bytes are zeros.
  std::vector<TarExtent> extents = {};  // In rising order.
};

struct TarOptions {
  // Continues after the end of an archive, as tar's --ignore-zeros.
  bool concatenated = false;
};

struct TarContents {
  std::vector<TarMember> members;
  bool concatenated = false;  // As in TarOptions.
  // Whether the blocks of zeros exist. Not stored in an index.
  bool has_end = true;
  std::uint64_t decompressed_bytes = 0;  // 0 if not compressed.

  std::uint64_t skipped = 0;       // Entries that are neither files nor folders.
  std::string first_skipped = {};  // "byte 1024: 'dev/null', a character device".
  // Data after the end, or a missing end. Empty for a complete archive.
  std::string unread = {};

  // Why a strict reader rejects the archive.
  struct Refusal {
    Fault fault;
    std::string text;  // Begins with the byte's offset.
  };
  std::optional<Refusal> strict_refusal = {};
};

// `size`: of the archive. `file`: for messages.
TarContents read_tar(std::string_view file, std::uint64_t size, const ReadAt& read,
                     const TarOptions& options = {});

}  // namespace lockstep::data
