// Compressed file formats, recognised by their first bytes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

struct Compression {
  std::string_view magic;
  std::string_view description;
  std::string_view remedy;

  // Checks `bytes`, which include the magic number; null if `magic` suffices.
  bool (*confirms)(std::string_view bytes) = nullptr;
};

// "BZh", the level, and the magic number of a block or of the end. Text may also begin with "BZh".
inline bool confirms_bzip2(std::string_view bytes) {
  return bytes.size() >= 10 && bytes[3] >= '1' && bytes[3] <= '9' &&
         (bytes.substr(4, 6) == "1AY&SY" || bytes.substr(4, 6) == "\x17\x72\x45\x38\x50\x90");
}

// Bytes 5 to 12 are the decompressed size: all ones if unknown, otherwise below 2^38, liblzma's
// limit. Tokens may also begin with `magic`.
inline bool confirms_lzma(std::string_view bytes) {
  if (bytes.size() < 13 || bytes[4] != '\0') return false;
  std::uint64_t size = 0;
  for (std::size_t i = 13; i > 5; --i) size = size << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return size == ~std::uint64_t{0} || size < std::uint64_t{1} << 38;
}

// gzip's third byte is deflate, its only method, as in Python's tarfile. Literals with zeros have
// explicit lengths.
inline constexpr Compression compressions[]{
    {"\x1f\x8b\x08", "compressed by gzip", "gunzip it"},
    {"BZh", "compressed by bzip2", "bunzip2 it", confirms_bzip2},
    {"\x28\xb5\x2f\xfd", "compressed by zstd", "unzstd it"},
    {"\x04\x22\x4d\x18", "compressed by lz4", "unlz4 it"},
    {{"\xfd\x37zXZ\0", 6}, "compressed by xz", "unxz it"},
    {{"\x5d\0\0\x80", 4}, "compressed by lzma", "unlzma it", confirms_lzma}};

inline const Compression* compression_of(std::span<const std::byte> beginning) {
  const std::string_view bytes(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  for (const Compression& each : compressions)
    if (bytes.starts_with(each.magic) && (each.confirms == nullptr || each.confirms(bytes)))
      return &each;
  return nullptr;
}

}  // namespace lockstep
