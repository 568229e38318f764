// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/arrays/npz_file.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <memory>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"
#include "lockstep/toolkit/datasets/thread_locale.h"

namespace lockstep::datasets {
namespace {

constexpr std::string_view array_end = ".npy";

class ZipReader {
 public:
  enum class Checksums { compare, ignore };

  ZipReader(std::string_view file, std::span<const std::byte> bytes, Checksums checksums)
      : file_(file), archive_(::archive_read_new()) {
    if (!archive_) throw std::bad_alloc();
    ::archive_read_support_format_zip_seekable(archive_.get());
    if (checksums == Checksums::ignore)
      ::archive_read_set_format_option(archive_.get(), "zip", "ignorecrc32", "1");
    if (::archive_read_open_memory(archive_.get(), bytes.data(), bytes.size()) != ARCHIVE_OK)
      refuse();
  }

  // Returns false at the end.
  bool next() {
    for (;;) {
      const int status = ::archive_read_next_header(archive_.get(), &entry_);
      if (status == ARCHIVE_EOF) return false;
      if (status != ARCHIVE_OK && status != ARCHIVE_WARN) refuse();
      const char* const path = ::archive_entry_pathname(entry_);
      name_ = path == nullptr ? "" : path;
      if (!name_.ends_with(array_end)) continue;
      name_.resize(name_.size() - array_end.size());
      return true;
    }
  }

  bool find(std::string_view name) {
    while (next())
      if (name_ == name) return true;
    return false;
  }

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(::archive_entry_size(entry_)); }

  // As libarchive names it: "ZIP 2.0 (uncompressed)".
  bool is_stored() const {
    return std::string_view(::archive_format_name(archive_.get())).ends_with("(uncompressed)");
  }

  // The array's next bytes, valid until the next call; empty at its end.
  std::span<const std::byte> block() {
    if (::archive_entry_is_encrypted(entry_) != 0)
      throw Error(Fault::unsupported, std::string(file_) + ": the array '" + clean_text(name_) +
                                          "' is encrypted: save it without a password");
    const void* bytes = nullptr;
    std::size_t size = 0;
    la_int64_t place = 0;
    const int status = ::archive_read_data_block(archive_.get(), &bytes, &size, &place);
    if (status == ARCHIVE_EOF) return {};
    if (status != ARCHIVE_OK) refuse();
    if (size == 0) return block();
    return {static_cast<const std::byte*>(bytes), size};
  }

  [[noreturn]] void refuse() const {
    const char* const text = ::archive_error_string(archive_.get());
    throw_corrupt(file_, static_cast<std::uint64_t>(::archive_filter_bytes(archive_.get(), 0)),
                  "an array in a zip archive",
                  "'" + clean_text(text == nullptr ? "damage" : text) + "'");
  }

 private:
  struct Free {
    void operator()(archive* handle) const { ::archive_read_free(handle); }
  };
  const std::string_view file_;
  const ThreadLocale locale_{"C.UTF-8"};  // NumPy writes names in UTF-8.
  const std::unique_ptr<archive, Free> archive_;
  archive_entry* entry_ = nullptr;
  std::string name_;
};

}  // namespace

bool is_zip(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.starts_with("PK\3\4") || text.starts_with("PK\5\6");
}

std::vector<std::string> names_in_npz(std::string_view file, std::span<const std::byte> bytes) {
  ZipReader zip(file, bytes, ZipReader::Checksums::ignore);
  std::vector<std::string> names;
  while (zip.next()) names.push_back(zip.name());
  return names;
}

std::span<const std::byte> array_in_npz(
    std::string_view file, std::span<const std::byte> bytes, std::string_view name,
    const std::function<std::span<std::byte>(std::uint64_t size)>& allocate) {
  {
    // Checksums would read all pages of a mapped file.
    ZipReader zip(file, bytes, ZipReader::Checksums::ignore);
    check(zip.find(name), "an array that its file does not have");
    if (zip.is_stored() && zip.size() > 0) {
      const auto stored = zip.block();
      if (stored.data() < bytes.data() ||
          stored.data() + stored.size() > bytes.data() + bytes.size() ||
          stored.size() != zip.size())
        throw_corrupt(file, 0, "the bytes of a stored array in one place", "others");
      return stored;
    }
  }
  ZipReader zip(file, bytes, ZipReader::Checksums::compare);
  check(zip.find(name), "an array that its file does not have");
  const std::span<std::byte> whole = allocate(zip.size());
  std::span<std::byte> left = whole;
  for (auto block = zip.block(); !block.empty(); block = zip.block()) {
    if (block.size() > left.size())
      throw_corrupt(file, 0, std::to_string(whole.size()) + " bytes of an array", "more");
    std::ranges::copy(block, left.begin());
    left = left.subspan(block.size());
  }
  if (!left.empty())
    throw_corrupt(file, 0, std::to_string(whole.size()) + " bytes of an array",
                  std::to_string(whole.size() - left.size()));
  return whole;
}

}  // namespace lockstep::datasets
