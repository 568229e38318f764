// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_format.h"
#include "lockstep/base/output_file.h"
#include "lockstep/checkpoint/crc32c.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

struct TypePair {
  SafetensorsType stored;
  at::ScalarType type;
};

constexpr std::array<TypePair, 19> type_pairs{
    {{SafetensorsType::BOOL, at::ScalarType::Bool},
     {SafetensorsType::U8, at::ScalarType::Byte},
     {SafetensorsType::I8, at::ScalarType::Char},
     {SafetensorsType::F8_E5M2, at::ScalarType::Float8_e5m2},
     {SafetensorsType::F8_E4M3, at::ScalarType::Float8_e4m3fn},
     {SafetensorsType::F8_E8M0, at::ScalarType::Float8_e8m0fnu},
     {SafetensorsType::F8_E4M3FNUZ, at::ScalarType::Float8_e4m3fnuz},
     {SafetensorsType::F8_E5M2FNUZ, at::ScalarType::Float8_e5m2fnuz},
     {SafetensorsType::I16, at::ScalarType::Short},
     {SafetensorsType::U16, at::ScalarType::UInt16},
     {SafetensorsType::F16, at::ScalarType::Half},
     {SafetensorsType::BF16, at::ScalarType::BFloat16},
     {SafetensorsType::I32, at::ScalarType::Int},
     {SafetensorsType::U32, at::ScalarType::UInt32},
     {SafetensorsType::F32, at::ScalarType::Float},
     {SafetensorsType::C64, at::ScalarType::ComplexFloat},
     {SafetensorsType::F64, at::ScalarType::Double},
     {SafetensorsType::I64, at::ScalarType::Long},
     {SafetensorsType::U64, at::ScalarType::UInt64}}};

std::string remedy_for(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kComplexDouble) return {};
  return "; it can store complex64, and torch::view_as_real() of this one";
}

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_size = 8;

// Bytes per read: they stay in the cache for the checksum.
constexpr std::size_t read_size = 256 << 10;

// O_NONBLOCK: opening a FIFO must not wait for a writer.
FileDescriptor open_to_read(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_errno(path.string());
  return fd;
}

// Also of a truncated pickle. Safetensors have '{' behind the length.
bool is_beginning_of_pickle(const std::byte* bytes) {
  return bytes[0] == std::byte{0x80} && bytes[1] >= std::byte{2} && bytes[1] <= std::byte{5} &&
         bytes[length_size] != std::byte{'{'};
}

std::optional<FileFormat> format_of(const FileDescriptor& fd, std::uint64_t size) {
  if (size <= length_size) return std::nullopt;
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return std::nullopt;
  const auto* const bytes = static_cast<const std::byte*>(data);
  auto format = file_format_of({bytes, size});
  if (!format && is_beginning_of_pickle(bytes))
    format = FileFormat{"the beginning of a pickle of Python", FileKind::pickle};
  ::munmap(data, size);
  return format;
}

std::string_view remedy_of(const FileFormat& format) {
  if (!format.remedy.empty()) return format.remedy;
  switch (format.kind) {
    case FileKind::pickle:
      return pickle_remedy;
    case FileKind::tar:
      return "unpack it, and name the weights in it";
    case FileKind::text:
      return "name a file of weights. If this one was downloaded, its text may have the reason";
    default:
      return "load it in Python and write its tensors with safetensors.torch.save_file()";
  }
}

void refuse_other_format(const std::string& name, const FileDescriptor& fd, std::uint64_t size) {
  const auto format = format_of(fd, size);
  if (!format || format->kind == FileKind::safetensors) return;
  throw Error(Fault::misuse, name + ": the file is not safetensors, but " +
                                 std::string(format->name) + ": " +
                                 std::string(remedy_of(*format)));
}

// Other bools than 0 and 1 are undefined behaviour.
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

std::optional<at::ScalarType> find_scalar_type(SafetensorsType type) {
  const auto found = std::ranges::find(type_pairs, type, &TypePair::stored);
  return found == type_pairs.end() ? std::nullopt : std::optional(found->type);
}

at::ScalarType scalar_type_of(const SafetensorsEntry& entry, const std::string& file) {
  const auto type = find_scalar_type(entry.type);
  if (!type)
    throw Error(Fault::unsupported, file + ": tensor " + shown(entry.name) + " is " +
                                        describe(entry) +
                                        ", and LibTorch has no such type: store it as another one");
  return *type;
}

SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), [&] { return "safetensors: tensor " + shown(name) + " is undefined"; });
  const auto type = std::ranges::find(type_pairs, tensor.scalar_type(), &TypePair::type);
  if (type == type_pairs.end() || tensor.layout() != at::kStrided)
    throw Error(Fault::unsupported, "safetensors: tensor " + shown(name) + " is " +
                                        tensor.toString() + ", which the format cannot store" +
                                        remedy_for(tensor));
  SafetensorsEntry entry;
  entry.name = name;
  entry.type = type->stored;
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
  try {
    read_header(expected);
  } catch (const Error& error) {
    // A checkpoint's file never has another format.
    if (error.fault() == Fault::corrupt && !expected) refuse_other_format(name_, fd_, size_);
    throw;
  }
}

std::uint32_t SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t begin,
                                    std::span<std::byte> out, std::uint32_t crc) const {
  std::uint64_t offset = data_offset_ + entry.begin + begin;
  // The kernel reads ahead during the first checksums.
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
  if (size_ == 0) throw Error(Fault::corrupt, name_ + ": the file is empty: copy it again");
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
                                    std::to_string(length) +
                                    ": the file is damaged, or is not a safetensors file");
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
  require(tensor.scalar_type() == scalar_type_of(entry) && tensor.sizes() == entry.shape, [&] {
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
