// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/shards/tar_members.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/data/shards/write_tar.h"
#include "tests/fault_of.h"

namespace lockstep::data::tar_members_test {
namespace {

using test::fault_of;

std::vector<TarMember> members_of(const std::string& tar) {
  return read_tar_members("x.tar", tar.size(), [&](std::uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), tar.size());
    std::memcpy(out.data(), tar.data() + offset, out.size());
  });
}

std::string padded(std::string content) {
  content.resize(padded_to_blocks(content.size()), '\0');
  return content;
}

std::string file(const std::string& name, const std::string& content) {
  return tar_headers(name, content.size()) + padded(content);
}

// A header of POSIX's format. `change` may edit it before its checksum is made.
template <class Change>
std::string posix_header(const std::string& name, std::size_t size, char type, Change change) {
  std::string text = tar_headers(name, size);
  TarHeader header{};
  std::memcpy(&header, text.data(), sizeof header);
  posix_magic.copy(header.magic.data(), header.magic.size());
  header.type = type;
  change(header);
  std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", tar_checksum(header));
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

std::string posix_header(const std::string& name, std::size_t size, char type) {
  return posix_header(name, size, type, [](TarHeader&) {});
}

std::string pax(const std::string& records) {
  return posix_header("pax", records.size(), 'x') + padded(records);
}

TEST(TarMembers, AreTheFilesOfTheArchive) {
  const std::string long_name(300, 'n'), full_name(100, 'f');
  const std::string tar = file("a.txt", "hello") + file("empty", "") + file(long_name, "x") +
                          file(full_name, std::string(512, 'y')) + file("\xff\n.bin", "z") +
                          tar_end();
  const auto members = members_of(tar);
  ASSERT_EQ(members.size(), 5U);
  EXPECT_EQ(members[0].name, "a.txt");
  EXPECT_EQ(tar.substr(members[0].offset, members[0].size), "hello");
  EXPECT_EQ(members[1].size, 0U);
  EXPECT_EQ(members[2].name, long_name);
  EXPECT_EQ(tar.substr(members[2].offset, members[2].size), "x");
  EXPECT_EQ(members[3].name, full_name);
  EXPECT_EQ(members[4].name, "\xff\n.bin");
  EXPECT_EQ(tar.substr(members[4].offset, members[4].size), "z");
  EXPECT_TRUE(members_of(tar_end()).empty());
}

TEST(TarMembers, HavePosixPrefixesAndPaxRecords) {
  const std::string prefixed = posix_header(
      "c.txt", 1, '0', [](TarHeader& header) { std::strcpy(header.prefix.data(), "a/b"); });
  const auto members =
      members_of(prefixed + padded("1") + posix_header("folder/", 0, '5') +
                 pax("18 path=long/name\n10 size=3\n11 mtime=1\n") + posix_header("short", 0, '0') +
                 padded("234") + posix_header("plain", 1, '\0') + padded("5") + tar_end());
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[0].name, "a/b/c.txt");
  EXPECT_EQ(members[1].name, "long/name");
  EXPECT_EQ(members[1].size, 3U);
  EXPECT_EQ(members[2].name, "plain");  // The records are for one file only.
}

TEST(TarMembers, AreRefusedFromAnArchiveThatIsCutAnywhere) {
  const std::string tar = file("a.txt", "hello") + file(std::string(120, 'n'), "x") + tar_end();
  for (std::size_t size = 0; size < tar.size(); ++size)
    EXPECT_EQ(fault_of([&] { members_of(tar.substr(0, size)); }), Fault::corrupt) << size;
}

TEST(TarMembers, AreRefusedWithAnyDamagedByteOfAHeader) {
  const std::string tar = file("a.txt", "hello") + tar_end();
  constexpr std::size_t after_checksum = 155;  // Means nothing, and is written in several ways.
  for (std::size_t place = 0; place < tar_block; ++place) {
    if (place == after_checksum) continue;
    std::string damaged = tar;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x01);
    EXPECT_EQ(fault_of([&] { members_of(damaged); }), Fault::corrupt) << "byte " << place;
  }
}

TEST(TarMembers, AreRefusedWithTheReason) {
  struct Case {
    std::string tar;
    Fault fault;
    const char* message;
  };
  const auto of_type = [](char type) { return posix_header("x", 0, type) + tar_end(); };
  const auto endless = posix_header("x", 0, '0', [](TarHeader& header) {
    std::memcpy(header.size.data(), "\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12);
  });
  const std::string whole = file("a", "b");
  const Case cases[]{
      {std::string("\x1f\x8b", 2) + std::string(1022, 'x'), Fault::unsupported, "gunzip it"},
      {"\x28\xb5\x2f\xfd" + std::string(1020, 'x'), Fault::unsupported, "unzstd it"},
      {std::string(1024, 'x'), Fault::corrupt, "x.tar: byte 0: expected a header of tar"},
      {of_type('1'), Fault::unsupported, "--hard-dereference"},
      {of_type('2'), Fault::unsupported, "link"},
      {of_type('S'), Fault::unsupported, "of type 'S'"},
      {of_type('6'), Fault::unsupported, "of type '6'"},
      {pax("22 GNU.sparse.major=1\n") + of_type('0'), Fault::unsupported, "--sparse"},
      {pax("18 path=long/name\n") + tar_end(), Fault::corrupt, "a long name is for"},
      {pax("99 path=long/name\n") + of_type('0'), Fault::corrupt, "records of pax"},
      {pax("10 size=z\n") + of_type('0'), Fault::corrupt, "a size"},
      {endless + tar_end(), Fault::corrupt, "expected a file of at most"},
      {posix_header("n", 1 << 20, 'L') + std::string(1 << 20, 'n') + tar_end(), Fault::corrupt,
       "bytes of names"},
      {whole + tar_end() + whole + tar_end(), Fault::corrupt,
       "x.tar: byte 2048: expected zeros after the end of the archive, found more data"},
      {whole + std::string(512, '\0'), Fault::corrupt, "after one"},
      {whole, Fault::corrupt, "x.tar: byte 1024: expected a header, or the end"}};
  for (const Case& each : cases) {
    std::string text;
    EXPECT_EQ(fault_of([&] { members_of(each.tar); }, &text), each.fault) << each.message;
    EXPECT_NE(text.find(each.message), text.npos) << text;
  }
}

TEST(TarMembers, MayBeLargerThanOctalNumbersSay) {
  const std::string header = tar_headers("x.bin", std::uint64_t{9} << 30);
  TarHeader raw{};
  std::memcpy(&raw, header.data(), sizeof raw);
  EXPECT_EQ(raw.size[0], '\x80');
  const std::uint64_t size = tar_block + (std::uint64_t{9} << 30) + 2 * tar_block;
  const auto members =
      read_tar_members("x.tar", size, [&](std::uint64_t offset, std::span<std::byte> out) {
        std::memset(out.data(), 0, out.size());
        if (offset == 0) std::memcpy(out.data(), header.data(), out.size());
      });
  ASSERT_EQ(members.size(), 1U);
  EXPECT_EQ(members[0].size, std::uint64_t{9} << 30);
}

}  // namespace
}  // namespace lockstep::data::tar_members_test
