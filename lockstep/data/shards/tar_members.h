// The files in a tar archive, found by libarchive without reading their contents.
//
// Formats: v7, ustar, pax and GNU tar, and any of them compressed. Names are the bytes in the
// archive. The files are those that Python's tarfile calls regular, in its order. Folders and
// volume labels are left out, all other entries are skipped and counted. A hard link to a file of
// the archive is that file once more.
//
// Torch-free, so that it can be fuzzed.
// Errors: corrupt, naming file, byte, expected and found, for a damaged header, a file beyond the
// end, and damaged compressed data.

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

// A header. Numbers are octal text. Frozen (POSIX.1-2001, pax; GNU tar's manual, "Basic Tar").
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

// Sum of a header's bytes, with spaces in the place of the checksum.
std::uint32_t tar_checksum(const TarHeader& header);

// Bytes of a file in an archive, with the padding to whole blocks.
constexpr std::uint64_t padded_to_blocks(std::uint64_t bytes) {
  return (bytes + tar_block - 1) / tar_block * tar_block;
}

// Consecutive bytes of a sparse file.
struct TarExtent {
  std::uint64_t at = 0;      // Place in the file.
  std::uint64_t offset = 0;  // Place in the archive.
  std::uint64_t size = 0;
};

struct TarMember {
  std::string name;
  std::uint64_t offset = 0;  // Of its first byte; of a compressed archive, after decompression.
  std::uint64_t size = 0;
  bool is_link = false;                 // A hard link to a member before it.
  bool is_sparse = false;               // Its bytes are those of `extents`, zeros elsewhere.
  std::vector<TarExtent> extents = {};  // In rising order.
};

struct TarOptions {
  // Reads on after the end of an archive, as tar's --ignore-zeros.
  bool concatenated = false;
};

struct TarContents {
  std::vector<TarMember> members;
  bool concatenated = false;             // As in the options.
  bool has_end = true;                   // The blocks of zeros. Not in an index.
  std::uint64_t decompressed_bytes = 0;  // 0: the archive is not compressed.

  std::uint64_t skipped = 0;       // Entries that are neither files nor folders.
  std::string first_skipped = {};  // "byte 1024: 'dev/null', a character device".
  // Describes data after the end, or a missing end. Empty for a complete archive.
  std::string unread = {};

  // Why the archive is not a plain, complete one of ustar, pax or GNU tar with files and folders
  // only, in the words of an Error.
  struct Refusal {
    Fault fault;
    std::string text;  // Begins with the byte.
  };
  std::optional<Refusal> strict_refusal = {};
};

// Returns the regular files of an archive of `size` bytes, in its order. `file` is for messages.
TarContents read_tar(std::string_view file, std::uint64_t size, const ReadAt& read,
                     const TarOptions& options = {});

}  // namespace lockstep::data
