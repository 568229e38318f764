// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/tar_members.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>

#include "lockstep/base/compression.h"
#include "lockstep/base/file_format.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"
#include "lockstep/toolkit/datasets/thread_locale.h"

namespace lockstep::datasets {
namespace {

// A header with extensions; compressed archives are read completely.
constexpr std::size_t header_block = 8 * tar_block;
constexpr std::size_t stream_block = 128 * tar_block;

// Padding after the end: GNU tar's largest record.
constexpr std::uint64_t most_padding = 16 << 20;

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

std::optional<std::uint64_t> octal_in(std::string_view text) {
  text = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 8);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Requires a correct checksum.
std::optional<TarHeader> header_in(std::span<const std::byte> bytes) {
  if (bytes.size() < tar_block) return std::nullopt;
  TarHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto sum = octal_in({header.checksum.data(), header.checksum.size()});
  if (sum != tar_checksum(header)) return std::nullopt;
  return header;
}

// Types that tarfile treats as regular files.
bool is_file_type(char type) { return type == '0' || type == '\0' || type == '7' || type == 'S'; }

std::string kind_of(unsigned filetype, std::optional<char> type) {
  switch (filetype) {
    case AE_IFLNK:
      return "a symbolic link";
    case AE_IFCHR:
      return "a character device";
    case AE_IFBLK:
      return "a block device";
    case AE_IFIFO:
      return "a FIFO";
    default:
      if (type == '1') return "a hard link without a target";
      return type ? "an entry of type " + in_quotes({&*type, 1}) : "an entry of another type";
  }
}

std::string normal(const char* name) {
  return std::filesystem::path(name).lexically_normal().native();
}

class TarReader {
 public:
  TarReader(std::string_view file, ArchiveInput& input, std::size_t block,
            const TarOptions& options)
      : file_(file), input_(input), reader_(input, block), options_(options) {}

  TarContents contents() {
    archive* const handle = reader_.get();
    ::archive_read_support_format_tar(handle);
    if (options_.concatenated)
      ::archive_read_set_format_option(handle, "tar", "read_concatenated_archives", "1");
    if (reader_.open() != ARCHIVE_OK) refuse("a tar archive", in_quotes(reader_.error()));
    contents_.concatenated = options_.concatenated;
    archive_entry* entry = nullptr;
    while (next(entry)) add(entry);
    read_end();
    return std::move(contents_);
  }

 private:
  [[noreturn]] void refuse(std::string_view expected, std::string_view found) const {
    throw_corrupt(file_, header_at_, expected, found);
  }

  // Keeps the first reason.
  void note(Fault fault, std::uint64_t offset, const std::string& text) {
    if (!contents_.strict_refusal)
      contents_.strict_refusal = {fault, "byte " + std::to_string(offset) + ": " + text};
  }

  void note_expected(std::uint64_t offset, const std::string& expected, const std::string& found) {
    note(Fault::corrupt, offset, "expected " + expected + ", found " + found);
  }

  std::uint64_t position() const {
    return static_cast<std::uint64_t>(::archive_filter_bytes(reader_.get(), 0));
  }

  bool next(archive_entry*& entry) {
    const int status = reader_.finish(::archive_read_next_header(reader_.get(), &entry));
    const auto place = ::archive_read_header_position(reader_.get());
    header_at_ = place < 0 ? position() : static_cast<std::uint64_t>(place);  // -30 after damage.
    if (status != ARCHIVE_OK && status != ARCHIVE_EOF && !is_harmless(status))
      refuse("a header of tar, and its file", in_quotes(reader_.error()));
    require_whole_file();
    return status != ARCHIVE_EOF;
  }

  // Names that libarchive could not convert, and unused attributes, are harmless. A malformed
  // record may have had a name or size.
  bool is_harmless(int status) const {
    return status == ARCHIVE_WARN && reader_.error().find("malformed") == std::string::npos;
  }

  void require_whole_file() {
    if (!last_end_) return;
    if (*last_end_ != header_at_)
      refuse("a header behind the file '" + clean_text(contents_.members.back().name) +
                 "', at byte " + std::to_string(*last_end_),
             "the file's end");
    last_end_.reset();
  }

  void add(archive_entry* entry) {
    const char* const name = ::archive_entry_pathname(entry);
    const std::string shown = name == nullptr ? "" : name;
    if (const auto header = header_in(reader_.held(header_at_, tar_block)))
      note_unknown_magic(*header);
    if (const char* const target = ::archive_entry_hardlink(entry)) return add_link(shown, target);
    const auto filetype = ::archive_entry_filetype(entry);
    if (filetype == AE_IFDIR) return;
    const std::optional<char> type = type_of_entry();
    if (filetype != AE_IFREG || (type && !is_file_type(*type)))
      return skip(shown, kind_of(filetype, type),
                  filetype == AE_IFLNK
                      ? "a link: archive the files that links lead to (tar -h --hard-dereference)"
                      : "not a file");
    if (shown.empty()) return skip(shown, "a file without a name", "expected a name");
    add_file(entry, shown);
  }

  void note_unknown_magic(const TarHeader& header) {
    const std::string_view magic(header.magic.data(), header.magic.size());
    if (magic != posix_magic && magic != gnu_magic)
      note_expected(header_at_, "the format ustar", in_quotes(magic));
  }

  // In the header directly before the file's bytes.
  std::optional<char> type_of_entry() const {
    if (position() < tar_block) return std::nullopt;
    const auto header = header_in(reader_.held(position() - tar_block, tar_block));
    return header ? std::optional(header->type) : std::nullopt;
  }

  void skip(const std::string& name, const std::string& kind, const std::string& remedy) {
    const std::string text = in_quotes(name) + ", " + kind;
    if (contents_.skipped++ == 0)
      contents_.first_skipped = "byte " + std::to_string(header_at_) + ": " + text;
    note(Fault::unsupported, header_at_, text + ": " + remedy);
  }

  void add_file(archive_entry* entry, const std::string& name) {
    TarMember member{.name = name,
                     .offset = position(),
                     .size = static_cast<std::uint64_t>(::archive_entry_size(entry))};
    if (::archive_entry_sparse_count(entry) > 0) {
      read_extents(member);
      note(Fault::unsupported, header_at_,
           in_quotes(name) + ", a sparse file: archive it without --sparse");
    } else {
      constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      if (member.size > most - member.offset - tar_block) refuse("a file's size", "a larger one");
      last_end_ = member.offset + padded_to_blocks(member.size);
    }
    if (!by_name_.empty()) by_name_[normal(name.c_str())] = contents_.members.size();
    contents_.members.push_back(std::move(member));
  }

  void read_extents(TarMember& member) {
    member.is_sparse = true;
    member.offset = 0;
    const void* bytes = nullptr;
    std::size_t size = 0;
    la_int64_t place = 0;
    std::uint64_t end = 0;
    int status = ARCHIVE_OK;
    while ((status = reader_.finish(
                ::archive_read_data_block(reader_.get(), &bytes, &size, &place))) == ARCHIVE_OK) {
      if (size == 0) continue;
      const TarExtent extent{static_cast<std::uint64_t>(place), position(), size};
      if (place < 0 || extent.at < end || extent.at > member.size || size > member.size - extent.at)
        refuse("the map of a sparse file of " + std::to_string(member.size) + " bytes",
               std::to_string(size) + " bytes at " + std::to_string(place));
      end = extent.at + size;
      TarExtent* const last = member.extents.empty() ? nullptr : &member.extents.back();
      if (last && last->at + last->size == extent.at && last->offset + last->size == extent.offset)
        last->size += size;
      else
        member.extents.push_back(extent);
    }
    if (status != ARCHIVE_EOF) refuse("the bytes of a sparse file", in_quotes(reader_.error()));
  }

  void add_link(const std::string& name, const char* target) {
    if (by_name_.empty())
      for (std::size_t i = 0; i < contents_.members.size(); ++i)
        by_name_[normal(contents_.members[i].name.c_str())] = i;
    const auto found = by_name_.find(normal(target));
    if (found == by_name_.end())
      return skip(name, "a hard link to " + in_quotes(target) + ", which is no file before it",
                  "archive the files that links lead to (tar -h --hard-dereference)");
    note(Fault::unsupported, header_at_,
         "a link: archive the files that links lead to (tar -h --hard-dereference)");
    TarMember member = contents_.members[found->second];
    if (member.name == name) return;  // A file listed twice for tar.
    member.name = name;
    member.is_link = true;
    by_name_[normal(name.c_str())] = contents_.members.size();
    contents_.members.push_back(std::move(member));
  }

  void read_end() {
    const std::uint64_t after = position();
    const auto first = reader_.held(header_at_, tar_block);
    if (after > header_at_ && !first.empty() && !is_zero(first))
      refuse("the file that a long name is for", "the end");
    if (after == header_at_) {
      contents_.has_end = false;
      contents_.unread =
          "it ends without the two blocks of zeros that end an archive: it may have "
          "been cut off";
      note_expected(after, "a header, or the end of the archive: two blocks of zeros",
                    "the end of the file");
    } else if (after - header_at_ < 2 * tar_block) {
      note_expected(header_at_, "two blocks of zeros", "one");
    }
    if (options_.concatenated) note(Fault::unsupported, after, "several archives in one file");
    pass_over_rest(after);
  }

  // Looks for data after the end, and the end of compressed data.
  void pass_over_rest(std::uint64_t after) {
    std::vector<std::byte> block(stream_block);
    auto bytes = reader_.held(after, input_.position() - after);
    for (std::uint64_t at = after; at - after <= most_padding;) {
      if (bytes.empty()) {
        bytes = std::span(block).first(input_.read(block));
        if (bytes.empty()) return;
      }
      if (!is_zero(bytes)) {
        const auto other =
            std::ranges::find_if(bytes, [](std::byte byte) { return byte != std::byte{0}; });
        const auto skipped = static_cast<std::size_t>(other - bytes.begin());
        at += skipped;
        note_expected(at, "zeros after the end of the archive", "more data");
        const bool is_archive = header_in(bytes.subspan(skipped)).has_value();
        pass_over_all();
        contents_.unread = std::to_string(input_.position() - at) + " bytes from byte " +
                           std::to_string(at) + " on, after its end, were not read";
        if (is_archive)
          contents_.unread +=
              ". They are another archive, which TarShardsOptions::concatenated reads";
        return;
      }
      at += bytes.size();
      bytes = {};
    }
    pass_over_all();
    const std::string more = std::to_string(input_.position() - after) + " more bytes";
    note_expected(after, "the end of the archive", more);
    contents_.unread = more + " from byte " + std::to_string(after) +
                       " on, after its end, were not read, as they begin with more than " +
                       std::to_string(most_padding >> 20) +
                       " MiB of zeros. TarShardsOptions::concatenated reads archives among them";
  }

  void pass_over_all() { input_.skip(std::numeric_limits<std::uint64_t>::max()); }

  const std::string_view file_;
  ArchiveInput& input_;
  // In other locales, libarchive converts pax's names to the locale's encoding, and normalises
  // accents.
  const ThreadLocale locale_{"C"};
  ArchiveReader reader_;
  const TarOptions options_;
  std::uint64_t header_at_ = 0;
  // The previous member's end, if contiguous.
  std::optional<std::uint64_t> last_end_;
  // Empty before any link.
  std::unordered_map<std::string, std::size_t> by_name_;
  TarContents contents_;
};

}  // namespace

std::uint32_t tar_checksum(const TarHeader& header) {
  std::uint32_t sum = 0;
  for (const std::byte byte : std::as_bytes(std::span(&header, 1)))
    sum += std::to_integer<std::uint32_t>(byte);
  for (const char each : header.checksum) sum += ' ' - static_cast<unsigned char>(each);
  return sum;
}

TarContents read_tar(std::string_view file, std::uint64_t size, const ReadAt& read,
                     const TarOptions& options) {
  if (size == 0) throw_corrupt(file, 0, "a tar archive", "the end of the file");
  std::vector<std::byte> begin(std::min<std::uint64_t>(size, tar_block));
  read(0, begin);
  auto plain = std::make_unique<PlainInput>(size, read);
  // A name may look like a compressed file's beginning.
  const bool has_header = header_in(begin).has_value();
  const Compression* const compression = has_header ? nullptr : compression_of(begin);
  if (compression == nullptr) {
    const auto format = has_header ? std::nullopt : file_format_of(begin);
    if (format && format->kind != FileKind::tar)
      throw_corrupt(file, 0, "a tar archive", describe(*format));
    return TarReader(file, *plain, header_block, options).contents();
  }

  const std::string shown = std::string(file) + " (decompressed)";
  DecompressedInput decompressed(std::string(file), std::move(plain));
  TarContents contents = TarReader(shown, decompressed, stream_block, options).contents();
  contents.decompressed_bytes = decompressed.position();
  contents.strict_refusal = {
      Fault::unsupported,
      "byte 0: the shard is " + std::string(compression->description) +
          ", and its samples can be read in order only: " + std::string(compression->remedy)};
  return contents;
}

}  // namespace lockstep::datasets
