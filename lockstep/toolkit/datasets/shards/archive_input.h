// Sequential access for libarchive to a plain or compressed file.
//
// Independent of LibTorch, for fuzzing. Thread safety: none.
// Errors: ReadAt's; corrupt for damaged data.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct archive;

namespace lockstep::datasets {

// Fills all of `out` from byte `offset` on.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

class ArchiveInput {
 public:
  virtual ~ArchiveInput() = default;

  // Returns the bytes read: fewer than out.size() only at the end.
  virtual std::size_t read(std::span<std::byte> out) = 0;

  // Returns the bytes skipped: fewer than `bytes` only at the end.
  virtual std::uint64_t skip(std::uint64_t bytes) = 0;

  virtual std::uint64_t position() const = 0;
};

class PlainInput : public ArchiveInput {
 public:
  PlainInput(std::uint64_t size, ReadAt read) : size_(size), read_(std::move(read)) {}

  std::size_t read(std::span<std::byte> out) override;
  std::uint64_t skip(std::uint64_t bytes) override;
  std::uint64_t position() const override { return at_; }

 private:
  const std::uint64_t size_;
  const ReadAt read_;
  std::uint64_t at_ = 0;
};

class ArchiveReader {
 public:
  // `block`: bytes per read, a multiple of tar's 512.
  ArchiveReader(ArchiveInput& input, std::size_t block);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  archive* get() const { return archive_; }
  std::string error() const;

  // Call it after choosing formats and filters. Returns libarchive's status.
  int open();

  // Returns `status`, or rethrows an exception of the input.
  int finish(int status);

  // These bytes, if one of the last two blocks read contains them all; otherwise empty.
  std::span<const std::byte> held(std::uint64_t offset, std::uint64_t size) const;

 private:
  static std::ptrdiff_t read_block(archive*, void* self, const void** bytes);
  static std::int64_t skip_bytes(archive*, void* self, std::int64_t bytes);
  template <class Call>
  std::int64_t without_exceptions(archive* handle, const Call& call);

  struct Block {
    std::uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };
  ArchiveInput& input_;
  const std::size_t block_;
  archive* const archive_;
  std::deque<Block> blocks_;  // libarchive uses the last one.
  std::exception_ptr thrown_;
};

// Decompresses another input, in any format of base/compression.h.
class DecompressedInput : public ArchiveInput {
 public:
  DecompressedInput(std::string file, std::unique_ptr<ArchiveInput> compressed);

  std::size_t read(std::span<std::byte> out) override;
  std::uint64_t skip(std::uint64_t bytes) override;
  std::uint64_t position() const override { return at_; }

 private:
  [[noreturn]] void refuse() const;

  const std::string file_;
  const std::unique_ptr<ArchiveInput> compressed_;
  ArchiveReader reader_;
  std::uint64_t at_ = 0;
};

}  // namespace lockstep::datasets
