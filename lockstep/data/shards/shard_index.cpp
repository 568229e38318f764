// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/shards/shard_index.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/corrupt_file.h"
#include "lockstep/data/shards/shard_names.h"

namespace lockstep::data {
namespace {

constexpr std::string_view index_magic = "LOCKSTEP SHARD 1";
constexpr std::size_t digested_at = 24;
constexpr std::size_t samples_at = 40;  // Behind the shard's size and time.
constexpr std::size_t index_header = 64;

std::uint64_t header_number(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

[[noreturn]] void refuse_twice(std::string_view shard, const std::string& key,
                               const std::string& suffix) {
  std::string text(shard);
  text += ": sample '" + clean_text(key) + "' has two files '" + clean_text(suffix) + "'";
  throw Error(Fault::corrupt, text);
}

// The samples of a shard: consecutive files of one key.
struct Grouped {
  std::vector<std::uint64_t> firsts;
  std::vector<const TarMember*> parts;
};

Grouped group_members(std::string_view shard, const std::vector<TarMember>& members) {
  Grouped grouped;
  std::string key;
  std::set<std::string> suffixes;
  for (const TarMember& member : members) {
    auto name = divide_name(member.name);
    if (!name) continue;
    if (grouped.parts.empty() || name->key != key) {
      grouped.firsts.push_back(grouped.parts.size());
      key = name->key;
      suffixes.clear();
    }
    if (!suffixes.insert(name->suffix).second) refuse_twice(shard, key, name->suffix);
    grouped.parts.push_back(&member);
  }
  grouped.firsts.push_back(grouped.parts.size());
  return grouped;
}

}  // namespace

std::string format_shard_index(std::string_view shard, const FileStamp& stamp,
                               const std::vector<TarMember>& members) {
  const Grouped grouped = group_members(shard, members);
  std::string names;
  for (const TarMember* part : grouped.parts) names += part->name;
  constexpr std::size_t entry = 24;
  ByteWriter out(index_header + grouped.firsts.size() * 8 + grouped.parts.size() * entry +
                 names.size());
  out.raw(index_magic).number(std::uint64_t{0}).number(stamp.size).number(stamp.changed_ns);
  out.number(std::uint64_t{grouped.firsts.size() - 1}).number(std::uint64_t{grouped.parts.size()});
  out.number(std::uint64_t{names.size()});
  for (const std::uint64_t first : grouped.firsts) out.number(first);
  std::uint64_t end = 0;
  for (const TarMember* part : grouped.parts)
    out.number(part->offset).number(part->size).number(end += part->name.size());
  out.raw(names);
  std::string text = out.take();
  const std::uint64_t digest = hash_of_elements(std::string_view(text).substr(digested_at));
  std::memcpy(text.data() + shard_index_digest_at, &digest, sizeof digest);
  return text;
}

std::string index_beside(const std::string& shard) { return shard + ".index"; }

void write_shard_index(const std::string& path, std::string_view index) {
  AtomicFile file(path, index.size());
  file.write(std::as_bytes(std::span(index)));
  file.commit_unsynced();
}

ShardIndexView::ShardIndexView(std::string_view file, std::span<const std::byte> bytes) {
  if (bytes.size() < index_header)
    throw_corrupt(file, bytes.size(), "64 bytes of an index's header", "the end of the file");
  if (std::memcmp(bytes.data(), index_magic.data(), index_magic.size()) != 0)
    throw_corrupt(file, 0, index_magic, "something else");
  digest_ = header_number(bytes, shard_index_digest_at);
  if (hash_of(bytes.subspan(digested_at)) != digest_)
    throw_corrupt(file, shard_index_digest_at, "the checksum of the index", "another");
  shard_ = {header_number(bytes, 24), static_cast<std::int64_t>(header_number(bytes, 32))};
  samples_bytes_ = bytes.subspan(samples_at);
  const std::uint64_t samples = header_number(bytes, samples_at), parts = header_number(bytes, 48),
                      names = header_number(bytes, 56);
  const std::uint64_t room = bytes.size() - index_header;
  // With these limits, the sum below cannot overflow.
  if (samples >= room / 8 || parts > room / sizeof(Entry) || names > room ||
      (samples + 1) * 8 + parts * sizeof(Entry) + names != room)
    throw_corrupt(file, samples_at, "numbers that fit the index's size", "others");
  const std::byte* at = bytes.data() + index_header;
  firsts_ = {reinterpret_cast<const std::uint64_t*>(at), samples + 1};
  at += firsts_.size_bytes();
  entries_ = {reinterpret_cast<const Entry*>(at), parts};
  at += entries_.size_bytes();
  names_ = {reinterpret_cast<const char*>(at), names};
  check_parts(file);
}

void ShardIndexView::check_parts(std::string_view file) const {
  const auto refuse = [&](const char* what) { throw_corrupt(file, index_header, what, "others"); };
  if (firsts_.front() != 0 || firsts_.back() != entries_.size())
    refuse("samples that have all parts");
  for (std::size_t i = 0; i + 1 < firsts_.size(); ++i)
    if (firsts_[i] >= firsts_[i + 1]) refuse("samples with a part each");
  std::uint64_t name_end = 0;
  for (const Entry& entry : entries_) {
    if (entry.size > shard_.size || entry.offset > shard_.size - entry.size)
      refuse("parts that lie in the shard");
    if (entry.name_end < name_end || entry.name_end > names_.size())
      refuse("names that lie among the names");
    if (!divide_name(names_.substr(name_end, entry.name_end - name_end)))
      refuse("names with a key");
    name_end = entry.name_end;
  }
}

ShardPart ShardIndexView::part(std::size_t part) const {
  const std::uint64_t begin = part == 0 ? 0 : entries_[part - 1].name_end;
  const Entry& entry = entries_[part];
  return {names_.substr(begin, entry.name_end - begin), entry.offset, entry.size};
}

std::uint64_t ShardIndexView::fingerprint() const { return hash_of(samples_bytes_); }

std::string_view ShardIndexView::key(std::size_t sample) const {
  const std::string_view name = part(first_part(sample)).name;
  return divide_name(name)->key;
}

std::vector<TarMember> read_tar_members(const FileDescriptor& shard, const std::string& name) {
  const FileStamp stamp = stamp_of(shard, name);
  return read_tar_members(name, stamp.size, [&](std::uint64_t offset, std::span<std::byte> out) {
    read_exactly_at(shard, name, offset, out);
  });
}

}  // namespace lockstep::data
