// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/crc32c.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_size = 8;

// Bytes read at a time; their checksum is computed while they are in the cache.
constexpr std::size_t read_size = 256 << 10;

// O_NONBLOCK: opening a FIFO must not wait for a writer.
FileDescriptor open_to_read(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_errno(path.string());
  return fd;
}

// A bool with a value other than 0 and 1 is undefined behaviour.
void require_truth_values(const std::string& file, const SafetensorsEntry& entry,
                          std::span<const std::byte> values) {
  const auto wrong =
      std::ranges::find_if(values, [](std::byte value) { return value > std::byte{1}; });
  if (wrong == values.end()) return;
  throw Error(Fault::corrupt, file + ": tensor " + shown(entry.name) +
                                  ": expected truth values of 0 and 1, found " +
                                  std::to_string(std::to_integer<int>(*wrong)));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : SafetensorsFile(path.string(), open_to_read(path), std::nullopt) {}

SafetensorsFile::SafetensorsFile(std::string name, FileDescriptor fd,
                                 const std::optional<Expected>& expected)
    : name_(std::move(name)), fd_(std::move(fd)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno(name_);
  if (!S_ISREG(status.st_mode)) throw Error(Fault::system, name_ + ": not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (expected && expected->bytes != size_)
    throw Error(Fault::corrupt, name_ + ": expected a file of " + std::to_string(expected->bytes) +
                                    " bytes, found one of " + std::to_string(size_));
  read_header(expected);
}

std::uint32_t SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t begin,
                                    std::span<std::byte> out, std::uint32_t crc) const {
  std::uint64_t offset = data_offset_ + entry.begin + begin;
  // The disk reads ahead while the first bytes are summed.
  ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                  POSIX_FADV_WILLNEED);
  while (!out.empty()) {
    const auto chunk = out.first(std::min(out.size(), read_size));
    read_at(offset, chunk);
    crc = crc32c(chunk, crc);
    if (entry.type == SafetensorsType::BOOL) require_truth_values(name_, entry, chunk);
    offset += chunk.size();
    out = out.subspan(chunk.size());
  }
  return crc;
}

void SafetensorsFile::read_header(const std::optional<Expected>& expected) {
  if (size_ < length_size)
    throw Error(Fault::corrupt, name_ + ": expected the length of the header in 8 bytes, found " +
                                    std::to_string(size_) + " bytes");
  std::uint64_t length = 0;
  const auto length_bytes = std::as_writable_bytes(std::span(&length, 1));
  read_at(0, length_bytes);
  if (length > safetensors_header_limit || length > size_ - length_size)
    throw Error(Fault::corrupt, name_ + ": byte 0: expected a header that fits the file of " +
                                    std::to_string(size_) + " bytes and the limit of " +
                                    std::to_string(safetensors_header_limit) + ", found one of " +
                                    std::to_string(length));
  std::string json(length, '\0');
  const auto json_bytes = std::as_writable_bytes(std::span(json));
  read_at(length_size, json_bytes);
  if (expected && crc32c(json_bytes, crc32c(length_bytes)) != expected->header_crc32c)
    throw Error(Fault::corrupt, name_ + ": the header is damaged: its CRC-32C is another one");
  data_offset_ = length_size + length;
  header_ = parse_safetensors_header(name_, json, size_ - data_offset_);
}

void SafetensorsFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got == 0)
      throw Error(Fault::corrupt, name_ + ": byte " + std::to_string(offset) + ": expected " +
                                      std::to_string(out.size()) +
                                      " more bytes, found the end: it became shorter meanwhile");
    if (got < 0 && errno != EINTR) throw_errno(name_);
    if (got < 0) continue;
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace lockstep
