// Sequential access to the bytes of an archive for libarchive, from a plain or a compressed file.
//
// Does not depend on LibTorch, so that it can be fuzzed. Thread safety: none.
// Errors: corrupt for damaged compressed data, with file, byte, expected and found value; those of
// ReadAt.

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

struct archive;  // libarchive's type.

namespace lockstep::data {

// Fills all of `out` with the file's bytes from `offset` on.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

class ArchiveInput {
 public:
  virtual ~ArchiveInput() = default;

  // Fills `out` with the next bytes and returns their number. Fewer than out.size() means the end.
  virtual std::size_t read(std::span<std::byte> out) = 0;

  // Skips `bytes` and returns their number. Fewer than `bytes` means the end.
  virtual std::uint64_t skip(std::uint64_t bytes) = 0;

  // Number of bytes before the next one.
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

// libarchive's handle for reading from an ArchiveInput.
class ArchiveReader {
 public:
  // Reads blocks of `block` bytes, a multiple of tar's 512.
  ArchiveReader(ArchiveInput& input, std::size_t block);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  archive* get() const { return archive_; }
  std::string error() const;

  // Call it after the formats and filters were chosen. Returns libarchive's status.
  int open();

  // Returns `status`, or rethrows an exception of the input.
  int finish(int status);

  // Returns a part of the last two blocks that were read.
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
  std::deque<Block> blocks_;  // libarchive uses the last block.
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

}  // namespace lockstep::data
