// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/archive_input.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t compressed_block = 1 << 16;
constexpr std::size_t most_held = 2;  // Blocks.

}  // namespace

// --- Plain ---------------------------------------------------------------------------------------

std::size_t PlainInput::read(std::span<std::byte> out) {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size_ - at_));
  if (bytes > 0) read_(at_, out.first(bytes));
  at_ += bytes;
  return bytes;
}

std::uint64_t PlainInput::skip(std::uint64_t bytes) {
  bytes = std::min(bytes, size_ - at_);
  at_ += bytes;
  return bytes;
}

// --- libarchive ----------------------------------------------------------------------------------

ArchiveReader::ArchiveReader(ArchiveInput& input, std::size_t block)
    : input_(input), block_(block), archive_(::archive_read_new()) {
  if (archive_ == nullptr) throw std::bad_alloc();
}

ArchiveReader::~ArchiveReader() { ::archive_read_free(archive_); }

std::string ArchiveReader::error() const {
  const char* const text = ::archive_error_string(archive_);
  return text == nullptr ? "damaged data" : clean_text(text);
}

int ArchiveReader::open() {
  ::archive_read_set_callback_data(archive_, this);
  ::archive_read_set_read_callback(archive_, read_block);
  ::archive_read_set_skip_callback(archive_, skip_bytes);
  return finish(::archive_read_open1(archive_));
}

int ArchiveReader::finish(int status) {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return status;
}

std::span<const std::byte> ArchiveReader::held(std::uint64_t offset, std::uint64_t size) const {
  for (const Block& block : blocks_)
    if (offset >= block.begin && offset - block.begin <= block.bytes.size() &&
        size <= block.bytes.size() - (offset - block.begin))
      return std::span(block.bytes).subspan(offset - block.begin, size);
  return {};
}

// Exceptions must not pass through libarchive's C. Returns -1 instead, only from read callbacks:
// after a failed skip libarchive would loop forever.
template <class Call>
std::int64_t ArchiveReader::without_exceptions(archive* handle, const Call& call) {
  try {
    return call();
  } catch (...) {
    thrown_ = std::current_exception();
    ::archive_set_error(handle, EIO, "the file could not be read");
    return -1;
  }
}

std::ptrdiff_t ArchiveReader::read_block(archive* handle, void* self, const void** bytes) {
  auto& reader = *static_cast<ArchiveReader*>(self);
  if (reader.thrown_) return -1;
  return static_cast<std::ptrdiff_t>(reader.without_exceptions(handle, [&]() -> std::int64_t {
    Block block;
    if (reader.blocks_.size() == most_held) {
      block = std::move(reader.blocks_.front());
      reader.blocks_.pop_front();
    }
    block.begin = reader.input_.position();
    block.bytes.resize(reader.block_);
    const std::size_t got = reader.input_.read(block.bytes);
    block.bytes.resize(got);
    const auto& kept = reader.blocks_.emplace_back(std::move(block)).bytes;
    *bytes = kept.data();
    return static_cast<std::int64_t>(got);
  }));
}

std::int64_t ArchiveReader::skip_bytes(archive* handle, void* self, std::int64_t bytes) {
  auto& reader = *static_cast<ArchiveReader*>(self);
  const std::int64_t skipped = reader.without_exceptions(handle, [&] {
    return static_cast<std::int64_t>(reader.input_.skip(static_cast<std::uint64_t>(bytes)));
  });
  return std::max<std::int64_t>(skipped, 0);
}

// --- Compressed ----------------------------------------------------------------------------------

DecompressedInput::DecompressedInput(std::string file, std::unique_ptr<ArchiveInput> compressed)
    : file_(std::move(file)),
      compressed_(std::move(compressed)),
      reader_(*compressed_, compressed_block) {
  archive* const handle = reader_.get();
  ::archive_read_support_filter_gzip(handle);
  ::archive_read_support_filter_bzip2(handle);
  ::archive_read_support_filter_zstd(handle);
  ::archive_read_support_filter_lz4(handle);
  ::archive_read_support_filter_xz(handle);
  ::archive_read_support_filter_lzma(handle);
  ::archive_read_support_format_raw(handle);
  ::archive_read_support_format_empty(handle);
  if (reader_.open() != ARCHIVE_OK) refuse();
  archive_entry* entry = nullptr;
  const int status = reader_.finish(::archive_read_next_header(handle, &entry));
  if (status != ARCHIVE_OK && status != ARCHIVE_EOF) refuse();
}

void DecompressedInput::refuse() const {
  throw_corrupt(file_, compressed_->position(), "compressed data", in_quotes(reader_.error()));
}

std::size_t DecompressedInput::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto got = ::archive_read_data(reader_.get(), out.data() + done, out.size() - done);
    reader_.finish(ARCHIVE_OK);
    if (got < 0) refuse();
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  at_ += done;
  return done;
}

std::uint64_t DecompressedInput::skip(std::uint64_t bytes) {
  std::array<std::byte, compressed_block> passed{};
  std::uint64_t done = 0;
  while (done < bytes) {
    const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(passed.size(), bytes - done));
    const std::size_t got = read(std::span(passed).first(now));
    done += got;
    if (got < now) break;
  }
  return done;
}

}  // namespace lockstep::datasets
