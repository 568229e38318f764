// The files in a tar archive, found without reading their contents.
//
// Formats: POSIX ustar, with pax records for path and size, and GNU tar, with long names and large
// sizes. The reader is strict, so that a damaged shard is found before training, not in the middle
// of it: every header has a right checksum, every file lies within the archive, the archive ends
// with two blocks of zeros, and only zeros follow. Folders are skipped.
//
// Torch-free, so that it can be fuzzed.
// Errors: corrupt, naming file, byte, expected and found; unsupported, with the remedy, for
// compressed archives, links, sparse files and other rare entries.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

struct TarMember {
  std::string name;
  std::uint64_t offset = 0;  // Of its first byte.
  std::uint64_t size = 0;
};

// Fills all of `out` with the archive's bytes from `offset` on.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

// Returns the regular files of an archive of `size` bytes, in its order. `file` is for messages.
std::vector<TarMember> read_tar_members(std::string_view file, std::uint64_t size,
                                        const ReadAt& read);

}  // namespace lockstep::data
