// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/shards/tar_members.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/data/corrupt_file.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t most_name_entry = 1 << 16;  // Of an entry that holds names only.
constexpr std::uint64_t most_padding = 16 << 20;    // After the end: GNU tar's largest record.

template <std::size_t n>
std::string_view text_of(const std::array<char, n>& field) {
  const std::string_view whole(field.data(), n);
  return whole.substr(0, whole.find('\0'));
}

// Returns nothing if `field` is no number of tar: octal digits, or GNU's 0x80 and big-endian bytes.
template <std::size_t n>
std::optional<std::uint64_t> number_in(const std::array<char, n>& field) {
  if (field[0] == '\x80') {
    std::uint64_t number = 0;
    for (std::size_t i = 1; i < n; ++i) {
      if (number >> 56 != 0) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(field[i]);
    }
    return number;
  }
  std::string_view text = text_of(field);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 8);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Compression {
  std::string_view magic;
  std::string_view remedy;
};
constexpr Compression compressions[]{{"\x1f\x8b", "gunzip"},
                                     {"BZh", "bunzip2"},
                                     {"\xfd\x37zXZ", "unxz"},
                                     {"\x28\xb5\x2f\xfd", "unzstd"},
                                     {"\x04\x22\x4d\x18", "unlz4"}};

class TarReader {
 public:
  TarReader(std::string_view file, std::uint64_t size, const ReadAt& read)
      : file_(file), size_(size), read_(read) {}

  std::vector<TarMember> members() {
    while (next_header()) read_entry();
    return std::move(members_);
  }

 private:
  [[noreturn]] void refuse(std::string_view expected, std::string_view found) const {
    throw_corrupt(file_, header_at_, expected, found);
  }

  [[noreturn]] void cannot_read(const std::string& what) const {
    throw Error(Fault::unsupported,
                std::string(file_) + ": byte " + std::to_string(header_at_) + ": " + what);
  }

  // Returns false at the end of the archive.
  bool next_header() {
    header_at_ = at_;
    if (size_ - at_ < tar_block)
      refuse("a header, or the end of the archive: two blocks of zeros", "the end of the file");
    read_(at_, std::as_writable_bytes(std::span(&header_, 1)));
    at_ += tar_block;
    if (!header_is_zero()) return true;
    require_only_zeros();
    return false;
  }

  bool header_is_zero() const {
    const auto bytes = std::as_bytes(std::span(&header_, 1));
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  void require_only_zeros() {
    if (!long_name_.empty() || long_size_) refuse("the file that a long name is for", "the end");
    if (size_ - at_ < tar_block) refuse("two blocks of zeros", "the end of the file after one");
    if (size_ - at_ > most_padding)
      throw_corrupt(file_, at_, "the end of the archive",
                    std::to_string(size_ - at_) + " more bytes");
    std::vector<std::byte> rest(size_ - at_);
    read_(at_, rest);
    const auto other =
        std::ranges::find_if(rest, [](std::byte byte) { return byte != std::byte{0}; });
    if (other != rest.end())
      throw_corrupt(file_, at_ + static_cast<std::uint64_t>(other - rest.begin()),
                    "zeros after the end of the archive", "more data");
  }

  void require_right_header() const {
    const auto sum = number_in(header_.checksum);
    const std::uint32_t expected = tar_checksum(header_);
    if (!sum || *sum != expected) {
      if (header_at_ == 0) refuse_compressed();
      refuse("a header of tar with checksum " + std::to_string(expected),
             sum ? std::to_string(*sum) : "no number");
    }
    const std::string_view magic(header_.magic.data(), header_.magic.size());
    if (magic != posix_magic && magic != gnu_magic) refuse("the format ustar", quoted(magic));
  }

  void refuse_compressed() const {
    const std::string_view bytes(header_.name.data(), header_.name.size());
    for (const Compression& each : compressions)
      if (bytes.starts_with(each.magic))
        cannot_read("the shard is compressed, but samples are read at any place in it: " +
                    std::string(each.remedy) + " it");
  }

  void read_entry() {
    require_right_header();
    const auto size = number_in(header_.size);
    if (!size) refuse("a size", quoted(text_of(header_.size)));
    switch (header_.type) {
      case '0':
      case '\0':
      case '7':
        return add_file(long_size_.value_or(*size));
      case '5':
        return forget_long_name();
      case 'L':
        long_name_ = read_name(*size);
        return;
      case 'x':
        return read_pax(*size);
      case 'g':
        return read_global_pax(*size);
      case 'V':
        return skip(*size);
      case '1':
      case '2':
      case 'K':
        cannot_read("a link: archive the files that links lead to (tar -h --hard-dereference)");
      default:
        cannot_read("an entry of type " + quoted({&header_.type, 1}) + ", not a file");
    }
  }

  void add_file(std::uint64_t size) {
    TarMember member{
        .name = long_name_.empty() ? short_name() : long_name_, .offset = at_, .size = size};
    if (member.name.empty()) refuse("a name", "none");
    skip(size);
    forget_long_name();
    members_.push_back(std::move(member));
  }

  std::string short_name() const {
    const std::string name(text_of(header_.name));
    const bool is_posix = std::string_view(header_.magic.data(), 8) == posix_magic;
    const std::string prefix(is_posix ? text_of(header_.prefix) : std::string_view());
    return prefix.empty() ? name : prefix + "/" + name;
  }

  void forget_long_name() {
    long_name_.clear();
    long_size_.reset();
  }

  // The contents of a file and their padding are in the archive.
  void skip(std::uint64_t size) {
    if (size > size_ - at_ || padded_to_blocks(size) > size_ - at_)
      refuse("a file of at most " + std::to_string(size_ - at_) + " bytes, up to the archive's end",
             std::to_string(size) + " bytes");
    at_ += padded_to_blocks(size);
  }

  std::string read_content(std::uint64_t size) {
    if (size > most_name_entry)
      refuse("at most " + std::to_string(most_name_entry) + " bytes of names",
             std::to_string(size));
    const std::uint64_t begin = at_;
    skip(size);
    std::string content(size, '\0');
    read_(begin, std::as_writable_bytes(std::span(content)));
    return content;
  }

  std::string read_name(std::uint64_t size) {
    std::string name = read_content(size);
    name.resize(std::min(name.find('\0'), name.size()));
    if (name.empty()) refuse("a long name", "none");
    return name;
  }

  // Calls use(key, value) for each record, "LENGTH KEY=VALUE\n"; LENGTH counts the whole record.
  template <class Use>
  void for_each_record(const std::string& content, const Use& use) const {
    std::string_view left = content;
    while (!left.empty()) {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), length);
      const auto digits = static_cast<std::size_t>(end - left.data());
      if (error != std::errc() || length > left.size() || length < digits + 3 ||
          left[digits] != ' ' || left[length - 1] != '\n')
        refuse("records of pax", quoted(left, 20));
      const std::string_view record = left.substr(digits + 1, length - digits - 2);
      const std::size_t equals = record.find('=');
      if (equals == record.npos) refuse("KEY=VALUE of pax", quoted(record, 20));
      use(record.substr(0, equals), record.substr(equals + 1));
      left.remove_prefix(length);
    }
  }

  void read_pax(std::uint64_t size) {
    for_each_record(read_content(size), [&](std::string_view key, std::string_view value) {
      if (key == "path") {
        if (value.empty() || value.find('\0') != value.npos) refuse("a path", "none");
        long_name_ = value;
      } else if (key == "size") {
        std::uint64_t number = 0;
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc() || end != value.data() + value.size())
          refuse("a size", quoted(value, 20));
        long_size_ = number;
      } else if (key.starts_with("GNU.sparse")) {
        cannot_read("a sparse file: archive it without --sparse");
      }
    });
  }

  void read_global_pax(std::uint64_t size) {
    for_each_record(read_content(size), [&](std::string_view key, std::string_view) {
      if (key == "path" || key == "size")
        cannot_read("a " + std::string(key) + " for all files of the archive");
    });
  }

  const std::string_view file_;
  const std::uint64_t size_;
  const ReadAt& read_;
  TarHeader header_ = {};
  std::uint64_t header_at_ = 0;
  std::uint64_t at_ = 0;                    // Of the next header.
  std::string long_name_;                   // Of the next file; empty if its header has the name.
  std::optional<std::uint64_t> long_size_;  // Likewise.
  std::vector<TarMember> members_;
};

}  // namespace

std::uint32_t tar_checksum(const TarHeader& header) {
  std::uint32_t sum = 0;
  for (const std::byte byte : std::as_bytes(std::span(&header, 1)))
    sum += std::to_integer<std::uint32_t>(byte);
  for (const char each : header.checksum) sum += ' ' - static_cast<unsigned char>(each);
  return sum;
}

std::vector<TarMember> read_tar_members(std::string_view file, std::uint64_t size,
                                        const ReadAt& read) {
  return TarReader(file, size, read).members();
}

}  // namespace lockstep::data
