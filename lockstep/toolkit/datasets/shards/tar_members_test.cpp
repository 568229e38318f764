// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/tar_members.h"

#include <gtest/gtest.h>
#include <locale.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"
#include "tests/fault_of.h"

namespace lockstep::datasets::tar_members_test {
namespace {

using test::fault_of;

TarContents contents_of(const std::string& tar, const TarOptions& options = {}) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), tar.size());
    std::memcpy(out.data(), tar.data() + offset, out.size());
  };
  return read_tar("x.tar", tar.size(), read, options);
}

std::vector<TarMember> members_of(const std::string& tar) { return contents_of(tar).members; }

void read_strictly(const std::string& tar) {
  const TarContents contents = contents_of(tar);
  if (const auto& refusal = contents.strict_refusal) throw Error(refusal->fault, refusal->text);
}

std::vector<std::string> names_in(const TarContents& contents) {
  std::vector<std::string> names;
  for (const TarMember& member : contents.members) names.push_back(member.name);
  return names;
}

std::string padded(std::string content) {
  content.resize(padded_to_blocks(content.size()), '\0');
  return content;
}

std::string file(const std::string& name, const std::string& content) {
  return tar_headers(name, content.size()) + padded(content);
}

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
  EXPECT_EQ(members[2].name, "plain");
}

TEST(TarMembers, AreRefusedFromAnArchiveThatIsCutInsideOfAFileOrHeader) {
  const std::string first = file("a.txt", "hello");
  const std::string tar = first + file(std::string(120, 'n'), "x") + tar_end();
  const std::size_t all = tar.size() - tar_end_bytes;
  for (std::size_t size = 0; size < tar.size(); ++size) {
    const std::string cut = tar.substr(0, size);
    EXPECT_EQ(fault_of([&] { read_strictly(cut); }), Fault::corrupt) << size;
    // If an archive is cut after a file, nothing shows that more has followed.
    const bool has_no_end = size == first.size() || size == all;
    const bool has_half_an_end = size >= all + tar_block;
    if (!has_no_end && !has_half_an_end) {
      EXPECT_EQ(fault_of([&] { members_of(cut); }), Fault::corrupt) << size;
      continue;
    }
    EXPECT_EQ(members_of(cut).size(), size == first.size() ? 1U : 2U);
    EXPECT_EQ(contents_of(cut).unread.empty(), has_half_an_end) << size;
    EXPECT_EQ(contents_of(cut).has_end, has_half_an_end) << size;
  }
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
    const char* message;
  };
  const auto endless = posix_header("x", 0, '0', [](TarHeader& header) {
    std::memcpy(header.size.data(), "\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12);
  });
  const Case cases[]{{"", "x.tar: byte 0: expected a tar archive, found the end of the file"},
                     {std::string(1024, '\1'), "x.tar: byte 0: expected a tar archive"},
                     {std::string(1024, 'x'), "byte 0: expected a tar archive, found a text"},
                     {"PK\3\4" + std::string(1020, '\1'), "found a zip archive"},
                     {"version https://git-lfs.github.com/spec/v1\n" + std::string(90, 'x'),
                      "found a pointer of Git LFS, not the file itself: download the file"},
                     {"\x1f\x8b\x08" + std::string(1021, 'x'),
                      "x.tar (decompressed): byte 0: expected a tar archive"},
                     {pax("18 path=long/name\n") + tar_end(), "expected a header of tar"},
                     {pax("99 path=long/name\n") + posix_header("x", 0, '0') + tar_end(),
                      "expected a header of tar"},
                     {endless + tar_end(), "expected a header of tar, and its file"},
                     {file("a", "b").substr(0, 700), "found 'Truncated"}};
  for (const Case& each : cases) {
    std::string text;
    EXPECT_EQ(fault_of([&] { members_of(each.tar); }, &text), Fault::corrupt) << each.message;
    EXPECT_NE(text.find(each.message), text.npos) << text;
  }
}

TEST(TarMembers, AreReadFromTheFormatV7AndBehindALabel) {
  const auto v7 = [](TarHeader& header) { header.magic.fill('\0'); };
  const std::string old = posix_header("old.txt", 3, '\0', v7) + padded("old");
  const std::string label = posix_header("a label", 0, 'V', v7);
  EXPECT_EQ(names_in(contents_of(old + tar_end())), std::vector<std::string>{"old.txt"});
  const std::string labelled = label + file("a.txt", "hello") + tar_end();
  EXPECT_EQ(names_in(contents_of(labelled)), std::vector<std::string>{"a.txt"});
  for (const std::string& tar : {old + tar_end(), labelled}) {
    std::string text;
    EXPECT_EQ(contents_of(tar).skipped, 0U);
    EXPECT_EQ(fault_of([&] { read_strictly(tar); }, &text), Fault::corrupt);
    EXPECT_NE(text.find("byte 0: expected the format ustar"), text.npos) << text;
  }
}

// As WebDataset.
TEST(TarMembers, AreCountedIfTheyAreNeitherFilesNorFolders) {
  const std::string before = file("a.txt", "1"), after = file("b.txt", "2") + tar_end();
  const std::pair<char, const char*> kinds[]{{'2', "a symbolic link"},
                                             {'3', "a character device"},
                                             {'4', "a block device"},
                                             {'6', "a FIFO"},
                                             {'1', "a hard link without a target"},
                                             {'Z', "an entry of type 'Z'"}};
  for (const auto& [type, kind] : kinds) {
    const std::string tar = before + posix_header("odd.txt", 0, type) + after;
    const TarContents contents = contents_of(tar);
    EXPECT_EQ(names_in(contents), (std::vector<std::string>{"a.txt", "b.txt"})) << type;
    EXPECT_EQ(contents.skipped, 1U) << type;
    EXPECT_EQ(contents.first_skipped.find("byte 1024: 'odd.txt', " + std::string(kind)), 0U)
        << contents.first_skipped;
    EXPECT_EQ(fault_of([&] { read_strictly(tar); }), Fault::unsupported) << type;
  }
  // An unknown type's contents are skipped; type 7 is a file.
  const std::string tar = posix_header("z.txt", 3, 'Z') + padded("zzz") +
                          posix_header("c.txt", 3, '7') + padded("ccc") + after;
  EXPECT_EQ(names_in(contents_of(tar)), (std::vector<std::string>{"c.txt", "b.txt"}));
  EXPECT_EQ(contents_of(before + posix_header("d/", 0, '5') + after).skipped, 0U);
}

TEST(TarMembers, AreThereOnceMoreByAHardLink) {
  const auto link = [](const char* name, const char* target) {
    return posix_header(name, 0, '1',
                        [&](TarHeader& header) { std::strcpy(header.link.data(), target); });
  };
  const std::string tar = file("a.txt", "hello") + link("b.txt", "./a.txt") +
                          link("c.txt", "b.txt") + link("a.txt", "a.txt") +
                          link("d.txt", "later.txt") + file("later.txt", "x") + tar_end();
  const TarContents contents = contents_of(tar);
  EXPECT_EQ(names_in(contents), (std::vector<std::string>{"a.txt", "b.txt", "c.txt", "later.txt"}));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(contents.members[i].offset, tar_block);
    EXPECT_EQ(contents.members[i].size, 5U);
    EXPECT_EQ(contents.members[i].is_link, i > 0);
  }
  EXPECT_EQ(contents.skipped, 1U);
  EXPECT_NE(contents.first_skipped.find("a hard link to 'later.txt', which is no file before it"),
            std::string::npos)
      << contents.first_skipped;
  std::string text;
  EXPECT_EQ(fault_of([&] { read_strictly(tar); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("--hard-dereference"), text.npos) << text;
}

TEST(TarMembers, FollowTheMapOfASparseFile) {
  const auto sparse = [](TarHeader& header) {
    header.magic = {'u', 's', 't', 'a', 'r', ' ', ' ', '\0'};
    // From byte 386 on, twice offset and size of bytes; the whole size.
    char* const map = reinterpret_cast<char*>(&header) + 386;
    const std::array numbers{"00000000200", "00000001000", "00000004000", "00000000003"};
    for (std::size_t i = 0; i < numbers.size(); ++i) std::strcpy(map + 12 * i, numbers[i]);
    std::strcpy(reinterpret_cast<char*>(&header) + 483, "00000010000");
  };
  const std::string tar = posix_header("sparse.bin", 515, 'S', sparse) +
                          padded(std::string(512, 'x') + "yyy") + file("a.txt", "1") + tar_end();
  const TarContents contents = contents_of(tar);
  ASSERT_EQ(names_in(contents), (std::vector<std::string>{"sparse.bin", "a.txt"}));
  const TarMember& member = contents.members[0];
  EXPECT_TRUE(member.is_sparse);
  EXPECT_EQ(member.size, 4096U);
  ASSERT_EQ(member.extents.size(), 2U);
  EXPECT_EQ(member.extents[0].at, 128U);
  EXPECT_EQ(tar.substr(member.extents[0].offset, member.extents[0].size), std::string(512, 'x'));
  EXPECT_EQ(member.extents[1].at, 2048U);
  EXPECT_EQ(tar.substr(member.extents[1].offset, member.extents[1].size), "yyy");
  EXPECT_EQ(fault_of([&] { read_strictly(tar); }), Fault::unsupported);
}

TEST(TarMembers, EndWithTheArchiveAndWhatFollowsIsNamed) {
  const std::string first = file("a.txt", "1") + tar_end();
  const std::string padding(10'240 - first.size(), '\0');
  EXPECT_NO_THROW(read_strictly(first + padding));
  EXPECT_EQ(contents_of(first + padding + padding).unread, "");

  const TarContents more = contents_of(first + padding + "hello");
  EXPECT_EQ(more.members.size(), 1U);
  EXPECT_NE(more.unread.find("5 bytes from byte 10240 on"), std::string::npos) << more.unread;
  const std::string both = first + padding + file("b.txt", "2") + tar_end();
  EXPECT_EQ(names_in(contents_of(both)), std::vector<std::string>{"a.txt"});
  EXPECT_NE(contents_of(both).unread.find("TarShardsOptions::concatenated"), std::string::npos)
      << contents_of(both).unread;
  EXPECT_EQ(names_in(contents_of(both, {.concatenated = true})),
            (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(contents_of(both, {.concatenated = true}).unread, "");
  std::string text;
  EXPECT_EQ(fault_of([&] { read_strictly(both); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("byte 10240: expected zeros after the end of the archive, found more data"),
            text.npos)
      << text;
}

TEST(TarMembers, AreFollowedByDataBehindManyZerosThatIsNamed) {
  const std::string first = file("a.txt", "1") + tar_end();
  const std::string many((16 << 20) + 10'240, '\0');
  const std::string more = first + many + file("b.txt", "2") + tar_end();
  const TarContents contents = contents_of(more);
  EXPECT_EQ(names_in(contents), std::vector<std::string>{"a.txt"});
  EXPECT_EQ(contents.unread.find(std::to_string(more.size() - first.size()) +
                                 " more bytes from byte 2048 on"),
            0U)
      << contents.unread;
  EXPECT_EQ(fault_of([&] { read_strictly(more); }), Fault::corrupt);
  EXPECT_EQ(names_in(contents_of(more, {.concatenated = true})),
            (std::vector<std::string>{"a.txt", "b.txt"}));
}

TEST(TarMembers, KeepTheBytesOfTheirNamesInEveryLocale) {
  const std::string decomposed = "e\xcc\x81.txt", bad = "\xff\xfe.txt";
  const std::string tar = pax("16 path=" + decomposed + "\n") + posix_header("x", 0, '0') +
                          pax("15 path=" + bad + "\n") + posix_header("y", 0, '0') + tar_end();
  const std::string before = ::setlocale(LC_ALL, nullptr);
  for (const char* locale : {"C", "C.UTF-8"}) {
    ASSERT_NE(::setlocale(LC_ALL, locale), nullptr);
    EXPECT_EQ(names_in(contents_of(tar)), (std::vector<std::string>{decomposed, bad})) << locale;
  }
  ::setlocale(LC_ALL, before.c_str());
}

std::string gzipped(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(TarMembers, AreTheSameInACompressedArchive) {
  std::string tar;
  for (int i = 0; i < 300; ++i)
    tar += file(std::to_string(i) + ".bin", std::string(static_cast<std::size_t>(i * 7), 'x'));
  tar += file("odd", "") + posix_header("fifo", 0, '6') + tar_end();
  const std::string packed = gzipped(tar);
  const TarContents plain = contents_of(tar), contents = contents_of(packed);
  EXPECT_EQ(names_in(contents), names_in(plain));
  EXPECT_EQ(contents.decompressed_bytes, tar.size());
  EXPECT_EQ(contents.skipped, 1U);
  for (std::size_t i = 0; i < plain.members.size(); ++i)
    EXPECT_EQ(contents.members[i].offset, plain.members[i].offset);
  std::string text;
  EXPECT_EQ(fault_of([&] { read_strictly(packed); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("gunzip it"), text.npos) << text;
  for (std::size_t size = 20; size < packed.size(); size += 97)
    EXPECT_EQ(fault_of([&] { members_of(packed.substr(0, size)); }), Fault::corrupt) << size;
  const std::string both = gzipped(file("a.txt", "1")) + gzipped(file("b.txt", "2") + tar_end());
  EXPECT_EQ(names_in(contents_of(both)), (std::vector<std::string>{"a.txt", "b.txt"}));
}

TEST(TarMembers, AreNotTakenForCompressedBecauseOfTheFirstName) {
  EXPECT_EQ(names_in(contents_of(file("BZh91AY&SY.txt", "1") + tar_end())),
            std::vector<std::string>{"BZh91AY&SY.txt"});
}

TEST(TarMembers, MayBeLargerThanOctalSizesAllow) {
  const std::string header = tar_headers("x.bin", std::uint64_t{9} << 30);
  TarHeader raw{};
  std::memcpy(&raw, header.data(), sizeof raw);
  EXPECT_EQ(raw.size[0], '\x80');
  const std::uint64_t size = tar_block + (std::uint64_t{9} << 30) + 2 * tar_block;
  const auto members = read_tar("x.tar", size, [&](std::uint64_t offset, std::span<std::byte> out) {
                         std::memset(out.data(), 0, out.size());
                         if (offset == 0)
                           std::memcpy(out.data(), header.data(), std::min(out.size(), tar_block));
                       }).members;
  ASSERT_EQ(members.size(), 1U);
  EXPECT_EQ(members[0].size, std::uint64_t{9} << 30);
}

}  // namespace
}  // namespace lockstep::datasets::tar_members_test
