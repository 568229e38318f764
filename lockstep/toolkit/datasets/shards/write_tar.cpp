// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/write_tar.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "lockstep/toolkit/datasets/shards/tar_members.h"

namespace lockstep::datasets {
namespace {

constexpr std::string_view long_name_entry = "././@LongLink";  // The name that GNU tar gives it.
constexpr std::uint64_t most_octal = 077777777777;

template <std::size_t n>
void put_octal(std::array<char, n>& field, std::uint64_t number) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%0*llo", static_cast<int>(n) - 1,
                static_cast<unsigned long long>(number));
  std::copy_n(text.begin(), n, field.begin());
}

void put_size(TarHeader& header, std::uint64_t size) {
  if (size <= most_octal) return put_octal(header.size, size);
  header.size[0] = '\x80';  // GNU tar: the rest is a big-endian number.
  for (std::size_t i = 0; i < 8; ++i)
    header.size[header.size.size() - 1 - i] = static_cast<char>(size >> (8 * i));
}

std::string tar_header(std::string_view name, std::uint64_t size, char type) {
  TarHeader header{};
  name.copy(header.name.data(), header.name.size());
  put_octal(header.mode, 0444);
  put_octal(header.uid, 0);
  put_octal(header.gid, 0);
  put_size(header, size);
  put_octal(header.mtime, 0);
  header.type = type;
  gnu_magic.copy(header.magic.data(), header.magic.size());
  std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", tar_checksum(header));
  header.checksum[7] = ' ';
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

bool is_long(std::string_view name) { return name.size() > sizeof(TarHeader::name); }

}  // namespace

std::string tar_headers(std::string_view name, std::uint64_t size) {
  std::string headers;
  if (is_long(name)) {
    headers = tar_header(long_name_entry, name.size() + 1, 'L');
    headers.append(name).append(padded_to_blocks(name.size() + 1) - name.size(), '\0');
  }
  return headers += tar_header(name, size, '0');
}

std::uint64_t tar_bytes(std::string_view name, std::uint64_t size) {
  const std::uint64_t long_name = is_long(name) ? tar_block + padded_to_blocks(name.size() + 1) : 0;
  return long_name + tar_block + padded_to_blocks(size);
}

std::string tar_end() { return std::string(tar_end_bytes, '\0'); }

}  // namespace lockstep::datasets
