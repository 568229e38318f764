// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/checkpoint/crc32c.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::optional<SafetensorsType> find_type(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return SafetensorsType::BOOL;
    case at::kByte:
      return SafetensorsType::U8;
    case at::kChar:
      return SafetensorsType::I8;
    case at::kShort:
      return SafetensorsType::I16;
    case at::kHalf:
      return SafetensorsType::F16;
    case at::kBFloat16:
      return SafetensorsType::BF16;
    case at::kInt:
      return SafetensorsType::I32;
    case at::kFloat:
      return SafetensorsType::F32;
    case at::kComplexFloat:
      return SafetensorsType::C64;
    case at::kDouble:
      return SafetensorsType::F64;
    case at::kLong:
      return SafetensorsType::I64;
    default:
      return std::nullopt;
  }
}

std::string cure_for(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kComplexDouble) return {};
  return "; it can store complex64, and torch::view_as_real() of this one";
}

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

SafetensorsHeader header_for(const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) header.entries.push_back(entry_for(name, tensor));
  lay_out(header);
  return header;
}

}  // namespace

at::ScalarType scalar_type_of(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::BOOL:
      return at::kBool;
    case SafetensorsType::U8:
      return at::kByte;
    case SafetensorsType::I8:
      return at::kChar;
    case SafetensorsType::I16:
      return at::kShort;
    case SafetensorsType::F16:
      return at::kHalf;
    case SafetensorsType::BF16:
      return at::kBFloat16;
    case SafetensorsType::I32:
      return at::kInt;
    case SafetensorsType::F32:
      return at::kFloat;
    case SafetensorsType::C64:
      return at::kComplexFloat;
    case SafetensorsType::F64:
      return at::kDouble;
    case SafetensorsType::I64:
      return at::kLong;
  }
  throw Error(Fault::bug, "safetensors: no such type");
}

SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), [&] { return "safetensors: tensor " + shown(name) + " is undefined"; });
  const auto type = find_type(tensor.scalar_type());
  if (!type || tensor.layout() != at::kStrided)
    throw Error(Fault::unsupported, "safetensors: tensor " + shown(name) + " is " +
                                        tensor.toString() + ", which the format cannot store" +
                                        cure_for(tensor));
  SafetensorsEntry entry;
  entry.name = name;
  entry.type = *type;
  entry.shape = tensor.sizes().vec();
  return entry;
}

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
    crc = lockstep::crc32c(chunk, crc);
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
  if (expected &&
      lockstep::crc32c(json_bytes, lockstep::crc32c(length_bytes)) != expected->header_crc32c)
    throw Error(Fault::corrupt, name_ + ": the header is damaged: its CRC-32C differs");
  data_offset_ = length_size + length;
  header_ = parse_safetensors_header(name_, json, size_ - data_offset_);
}

void SafetensorsFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got == 0)
      throw Error(Fault::corrupt,
                  name_ + ": byte " + std::to_string(offset) + ": expected " +
                      std::to_string(out.size()) +
                      " more bytes, found the end: it became shorter while it was read");
    if (got < 0 && errno != EINTR) throw_errno(name_);
    if (got < 0) continue;
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

struct SafetensorsWriter::State {
  State(const std::filesystem::path& path, SafetensorsHeader laid_out, const std::string& head)
      : header(std::move(laid_out)),
        file(path, head.size() + (header.entries.empty() ? 0 : header.entries.back().end)) {
    for (const SafetensorsEntry& entry : header.entries) order.push_back(entry.name);
    file.write(std::as_bytes(std::span(head)));
  }

  const SafetensorsHeader header;
  std::vector<std::string> order;
  std::size_t written = 0;  // Number of tensors.
  AtomicFile file;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file, const NamedTensors& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_([&] {
        SafetensorsHeader header = header_for(tensors, metadata);
        const std::string head = format_safetensors_header(header);
        return std::make_unique<State>(file, std::move(header), head);
      }()) {}

SafetensorsWriter::~SafetensorsWriter() = default;

const std::vector<std::string>& SafetensorsWriter::order() const { return state_->order; }

void SafetensorsWriter::write(const at::Tensor& tensor) {
  const auto& entries = state_->header.entries;
  require(state_->written < entries.size(), "safetensors: all tensors are written already");
  const SafetensorsEntry& entry = entries[state_->written];
  require(tensor.scalar_type() == scalar_type_of(entry.type) && tensor.sizes() == entry.shape, [&] {
    return "safetensors: tensor " + shown(entry.name) + " differs from its announced type or shape";
  });
  const at::Tensor values = plain_values(tensor);
  state_->file.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  ++state_->written;
}

void SafetensorsWriter::commit() {
  require(state_->written == state_->order.size(), "safetensors: some tensors were not written");
  state_->file.commit();
}

}  // namespace lockstep
