// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_index.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"
#include "lockstep/toolkit/datasets/shards/shard_names.h"

namespace lockstep::datasets {
namespace {

constexpr std::string_view index_magic = "LOCKSTEP SHARD 2";
constexpr std::string_view index_magic_1 = "LOCKSTEP SHARD 1";
constexpr std::size_t digested_at = 24;
constexpr std::size_t samples_at = 40;  // After the shard's size and time.
constexpr std::size_t index_header = 64;
constexpr std::size_t more_numbers = 8;  // In version 2, after the names.
constexpr std::array strict_faults{Fault::corrupt, Fault::unsupported};  // 1 and 2.

std::uint64_t header_number(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

constexpr std::size_t padding_of(std::size_t bytes) { return (8 - bytes % 8) % 8; }

[[noreturn]] void refuse_twice(std::string_view shard, const std::string& key,
                               const std::string& suffix) {
  std::string text(shard);
  text += ": sample '" + clean_text(key) + "' has two files '" + clean_text(suffix) + "'";
  throw Error(Fault::corrupt, text);
}

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
    if (!suffixes.insert(name->suffix).second) {
      if (member.is_link) continue;  // WebDataset ignores links.
      refuse_twice(shard, key, name->suffix);
    }
    grouped.parts.push_back(&member);
  }
  grouped.firsts.push_back(grouped.parts.size());
  return grouped;
}

// Version 2's section, with the padding before it.
std::string more_of_index(const Grouped& grouped, const TarContents& contents,
                          std::size_t names_bytes) {
  std::vector<ShardIndexView::Extent> extents;
  for (std::uint64_t part = 0; part < grouped.parts.size(); ++part) {
    const TarMember& member = *grouped.parts[part];
    if (member.is_sparse && member.extents.empty()) extents.push_back({part, 0, 0, 0});
    for (const TarExtent& each : member.extents)
      extents.push_back({part, each.at, each.offset, each.size});
  }
  const auto& refusal = contents.strict_refusal;
  const std::uint64_t fault = !refusal ? 0 : refusal->fault == Fault::corrupt ? 1 : 2;
  const std::string refused = refusal ? refusal->text : "";
  ByteWriter out(more_numbers * 8 + extents.size() * sizeof(extents[0]));
  out.raw(std::string(padding_of(names_bytes), '\0'));
  out.number(contents.decompressed_bytes).number(std::uint64_t{contents.concatenated});
  out.number(contents.skipped).number(fault).number(std::uint64_t{extents.size()});
  for (const auto& text : {contents.first_skipped, contents.unread, refused})
    out.number(std::uint64_t{text.size()});
  for (const auto& each : extents)
    out.number(each.part).number(each.at).number(each.offset).number(each.size);
  out.raw(contents.first_skipped).raw(contents.unread).raw(refused);
  return out.take();
}

}  // namespace

std::string format_shard_index(std::string_view shard, const FileStamp& stamp,
                               const TarContents& contents) {
  const Grouped grouped = group_members(shard, contents.members);
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
  std::string text = out.take() + more_of_index(grouped, contents, names.size());
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
  const std::string_view magic(reinterpret_cast<const char*>(bytes.data()), index_magic.size());
  if (magic != index_magic && magic != index_magic_1)
    throw_corrupt(file, 0, index_magic, "something else");
  version_ = magic == index_magic ? shard_index_version : 1;
  if (hash_of(bytes.subspan(digested_at)) != header_number(bytes, shard_index_digest_at))
    throw_corrupt(file, shard_index_digest_at, "the checksum of the index", "another");
  shard_ = {header_number(bytes, 24), static_cast<std::int64_t>(header_number(bytes, 32))};
  const std::uint64_t samples = header_number(bytes, samples_at), parts = header_number(bytes, 48),
                      names = header_number(bytes, 56);
  const std::uint64_t capacity = bytes.size() - index_header;
  const auto refuse = [&] {
    throw_corrupt(file, samples_at, "numbers that fit the size", "others");
  };
  // The sum below cannot overflow.
  if (samples >= capacity / 8 || parts > capacity / sizeof(Entry) || names > capacity) refuse();
  const std::uint64_t used = (samples + 1) * 8 + parts * sizeof(Entry) + names;
  if (used > capacity || (version_ == 1 && used != capacity)) refuse();
  const std::byte* at = bytes.data() + index_header;
  firsts_ = {reinterpret_cast<const std::uint64_t*>(at), samples + 1};
  at += firsts_.size_bytes();
  entries_ = {reinterpret_cast<const Entry*>(at), parts};
  at += entries_.size_bytes();
  names_ = {reinterpret_cast<const char*>(at), names};
  samples_bytes_ = bytes.subspan(samples_at, index_header - samples_at + used);
  if (version_ == shard_index_version) read_more(file, bytes.subspan(index_header + used));
  check_parts(file);
  check_extents(file);
}

void ShardIndexView::read_more(std::string_view file, std::span<const std::byte> bytes) {
  const auto refuse = [&] {
    throw_corrupt(file, samples_at, "numbers that fit the size", "others");
  };
  const std::size_t padding = padding_of(names_.size());
  if (bytes.size() < padding + more_numbers * 8) refuse();
  bytes = bytes.subspan(padding);
  const auto number = [&](std::size_t place) { return header_number(bytes, place * 8); };
  decompressed_bytes_ = number(0);
  concatenated_ = number(1);
  skipped_ = number(2);
  strict_fault_ = number(3);
  const std::uint64_t extents = number(4);
  std::array<std::uint64_t, 3> lengths{number(5), number(6), number(7)};
  bytes = bytes.subspan(more_numbers * 8);
  if (extents > bytes.size() / sizeof(Extent) || strict_fault_ > strict_faults.size()) refuse();
  extents_ = {reinterpret_cast<const Extent*>(bytes.data()), extents};
  bytes = bytes.subspan(extents_.size_bytes());
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (lengths[i] > bytes.size()) refuse();
    texts_[i] = {reinterpret_cast<const char*>(bytes.data()), lengths[i]};
    bytes = bytes.subspan(lengths[i]);
  }
  if (!bytes.empty()) refuse();
}

void ShardIndexView::check_parts(std::string_view file) const {
  const auto refuse = [&](const char* what) { throw_corrupt(file, index_header, what, "others"); };
  if (firsts_.front() != 0 || firsts_.back() != entries_.size())
    refuse("samples that have all parts");
  for (std::size_t i = 0; i + 1 < firsts_.size(); ++i)
    if (firsts_[i] >= firsts_[i + 1]) refuse("samples with a part each");
  std::uint64_t name_end = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const bool lies_within =
        entry.size <= readable_bytes() && entry.offset <= readable_bytes() - entry.size;
    if (!lies_within && extents(i).empty()) refuse("parts that lie in the shard");
    if (entry.name_end < name_end || entry.name_end > names_.size())
      refuse("names that lie among the names");
    if (!divide_name(names_.substr(name_end, entry.name_end - name_end)))
      refuse("names with a key");
    name_end = entry.name_end;
  }
}

void ShardIndexView::check_extents(std::string_view file) const {
  const auto refuse = [&] {
    throw_corrupt(file, index_header, "extents that lie in their part and in the shard", "others");
  };
  std::uint64_t part = 0, end = 0, offset_end = 0;
  for (const Extent& each : extents_) {
    if (each.part < part || each.part >= entries_.size()) refuse();
    if (each.part > part) end = offset_end = 0;
    part = each.part;
    const std::uint64_t size = entries_[part].size;
    if (each.at < end || each.at > size || each.size > size - each.at) refuse();
    if (each.size > readable_bytes() || each.offset > readable_bytes() - each.size) refuse();
    if (each.offset < offset_end) refuse();  // stored_bytes() counts each byte once.
    end = each.at + each.size;
    offset_end = each.offset + each.size;
  }
}

bool ShardIndexView::is_for(const TarOptions& options) const {
  if (version_ != shard_index_version) return false;
  // If a strict reader accepts the archive, the option has no effect.
  return (concatenated_ != 0) == options.concatenated || strict_fault_ == 0;
}

void ShardIndexView::require_strict(std::string_view shard) const {
  if (strict_fault_ == 0) return;
  throw Error(strict_faults[strict_fault_ - 1], std::string(shard) + ": " + std::string(texts_[2]));
}

std::span<const ShardIndexView::Extent> ShardIndexView::extents(std::size_t part) const {
  const auto found = std::ranges::equal_range(extents_, part, {}, &Extent::part);
  return {found.begin(), found.end()};
}

std::uint64_t ShardIndexView::stored_bytes(const ShardPart& part) const {
  const auto stored = extents(part.number);
  if (stored.empty()) return part.size;
  std::uint64_t bytes = 0;
  for (const Extent& each : stored) bytes += each.size;
  return bytes;
}

ShardPart ShardIndexView::part(std::size_t part) const {
  const std::uint64_t begin = part == 0 ? 0 : entries_[part - 1].name_end;
  const Entry& entry = entries_[part];
  return {part, names_.substr(begin, entry.name_end - begin), entry.offset, entry.size};
}

std::uint64_t ShardIndexView::fingerprint() const { return hash_of(samples_bytes_); }

std::string_view ShardIndexView::key(std::size_t sample) const {
  const std::string_view name = part(first_part(sample)).name;
  return divide_name(name)->key;
}

TarContents read_tar(const FileDescriptor& shard, const std::string& name,
                     const TarOptions& options) {
  const FileStamp stamp = stamp_of(shard, name);
  return read_tar(
      name, stamp.size,
      [&](std::uint64_t offset, std::span<std::byte> out) {
        read_exactly_at(shard, name, offset, out);
      },
      options);
}

}  // namespace lockstep::datasets
