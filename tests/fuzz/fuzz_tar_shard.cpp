// F12: a shard, and its index. The first byte selects: a tar, unchanged or with corrected header
// checksums, so that broken fields reach the parser; or an index, unchanged or with a corrected
// checksum. A shard may be compressed. All parts must be within the file, and a shard's index must
// be equal after it is written and read again.

// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_names.h"
#include "lockstep/toolkit/datasets/shards/tar_members.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

using namespace datasets;

void seal_headers(std::string& tar) {
  for (std::size_t at = 0; at + tar_block <= tar.size(); at += tar_block) {
    TarHeader header{};
    std::memcpy(&header, tar.data() + at, sizeof header);
    if (std::memcmp(header.magic.data(), "ustar", 5) != 0) continue;
    std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", tar_checksum(header));
    std::memcpy(tar.data() + at, &header, sizeof header);
  }
}

void seal_index(std::string& index) {
  constexpr std::size_t digested_at = shard_index_digest_at + sizeof(std::uint64_t);
  if (index.size() < digested_at) return;
  const std::uint64_t digest = hash_of_elements(std::string_view(index).substr(digested_at));
  std::memcpy(index.data() + shard_index_digest_at, &digest, sizeof digest);
}

TarContents contents_of(const std::string& tar, bool concatenated) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    expect(offset <= tar.size() && out.size() <= tar.size() - offset);
    std::memcpy(out.data(), tar.data() + offset, out.size());
  };
  return read_tar("x.tar", tar.size(), read, {.concatenated = concatenated});
}

// Calls use(view) for an index, after its bytes are aligned to eight.
template <class Use>
void with_view(const std::string& index, const Use& use) {
  std::vector<std::uint64_t> aligned(index.size() / 8 + 1);
  std::memcpy(aligned.data(), index.data(), index.size());
  use(ShardIndexView("x.index", std::as_bytes(std::span(aligned)).first(index.size())));
}

void expect_parts_within(const ShardIndexView& index) {
  for (std::size_t sample = 0; sample < index.samples(); ++sample) {
    expect(index.first_part(sample) < index.first_part(sample + 1));
    expect(!index.key(sample).empty());
    for (std::size_t i = index.first_part(sample); i < index.first_part(sample + 1); ++i) {
      const ShardPart part = index.part(i);
      const auto extents = index.extents(i);
      if (index.is_compressed()) continue;
      if (extents.empty())
        expect(part.offset <= index.shard().size && part.size <= index.shard().size - part.offset);
      for (const auto& each : extents) {
        expect(each.at <= part.size && each.size <= part.size - each.at);
        expect(each.offset <= index.shard().size && each.size <= index.shard().size - each.offset);
      }
    }
  }
}

void read_shard(const std::string& tar, bool concatenated) {
  const TarContents contents = contents_of(tar, concatenated);
  const std::uint64_t bytes =
      contents.decompressed_bytes > 0 ? contents.decompressed_bytes : tar.size();
  for (const TarMember& member : contents.members)
    if (!member.is_sparse) expect(member.offset <= bytes && member.size <= bytes - member.offset);
  const auto check = [&](const ShardIndexView& view) {
    expect_parts_within(view);
    expect(view.skipped() == contents.skipped && view.unread() == contents.unread);
    std::size_t part = 0;
    for (const TarMember& member : contents.members) {
      if (!divide_name(member.name)) continue;
      if (member.is_link &&
          (part == view.first_part(view.samples()) || view.part(part).name != member.name))
        continue;  // The sample has this part already.
      expect(view.part(part).name == member.name && view.part(part).offset == member.offset);
      ++part;
    }
    expect(part == view.first_part(view.samples()));
  };
  with_view(format_shard_index("x.tar", {tar.size(), 1}, contents), check);
}

std::string example_tar() {
  const auto file = [](const std::string& name, const std::string& content) {
    return tar_headers(name, content.size()) + content +
           std::string(padded_to_blocks(content.size()) - content.size(), '\0');
  };
  return file("a/1.jpg", "image") + file("a/1.cls", "7") + file(std::string(120, 'n') + ".txt", "");
}

// A header of pax with its records.
std::string example_pax() {
  std::string header = tar_headers("pax", 18);
  header[offsetof(TarHeader, type)] = 'x';
  return header + "18 path=long/name\n" + std::string(tar_block - 18, '\0');
}

std::string of_type(const std::string& name, char type, const std::string& link = "") {
  std::string header = tar_headers(name, 0);
  header[offsetof(TarHeader, type)] = type;
  link.copy(header.data() + offsetof(TarHeader, link), link.size());
  return header;
}

// A sparse file of GNU's format with two extents.
std::string example_sparse() {
  std::string header = tar_headers("sparse.bin", 515);
  header[offsetof(TarHeader, type)] = 'S';
  const char* const numbers[]{"00000000200", "00000001000", "00000004000", "00000000003"};
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(header.data() + 386 + 12 * i, numbers[i], 11);
  std::memcpy(header.data() + 483, "00000010000", 11);
  return header + std::string(2 * tar_block, 's');
}

std::string index_of(std::string tar) {
  seal_headers(tar);
  return format_shard_index("x.tar", {tar.size(), 1}, contents_of(tar, false));
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string tar = example_tar() + tar_end();
  const std::string odd = example_tar() + of_type("b.txt", '1', "a/1.jpg") + of_type("f", '6') +
                          example_sparse() + tar_end();
  // "tar", compressed by gzip.
  const std::string packed(
      "\x1f\x8b\x08\0\0\0\0\0\0\x03\x2b\x49\x2c\x02\0\xc8\x9e\x06\xc6\x03\0\0\0", 23);
  const std::string index = index_of(tar), odd_index = index_of(odd);
  return {'\0' + tar,   '\1' + tar,       '\1' + example_pax() + tar,
          '\1' + odd,   '\5' + tar + tar, '\0' + packed,
          '\2' + index, '\3' + index,     '\3' + odd_index};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 4 == 1) fuzz::seal_headers(input);
    if (data[0] % 4 == 3) fuzz::seal_index(input);
    if (data[0] % 4 < 2)
      fuzz::read_shard(input, data[0] % 8 > 3);
    else
      fuzz::with_view(input, fuzz::expect_parts_within);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
  return 0;
}
