// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_size = 8;
constexpr std::size_t most_complaints = 5;  // In one message.

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
    case at::kDouble:
      return SafetensorsType::F64;
    case at::kLong:
      return SafetensorsType::I64;
    default:
      return std::nullopt;
  }
}

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
    case SafetensorsType::F64:
      return at::kDouble;
    case SafetensorsType::I64:
      return at::kLong;
  }
  throw Error(Fault::bug, "safetensors: no such type");
}

SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), "safetensors: tensor " + shown(name) + " is undefined");
  const auto type = find_type(tensor.scalar_type());
  if (!type || tensor.layout() != at::kStrided)
    throw Error(Fault::unsupported, "safetensors: tensor " + shown(name) + " is " +
                                        tensor.toString() + ", which the format has no place for");
  SafetensorsEntry entry;
  entry.name = name;
  entry.type = *type;
  entry.shape = tensor.sizes().vec();
  return entry;
}

// An open file, and its header once it has been checked.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : name_(path.string()), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (!fd_) throw_errno(name_);
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) throw_errno(name_);
    if (!S_ISREG(status.st_mode)) throw Error(Fault::system, name_ + ": not a regular file");
    read_header(static_cast<std::uint64_t>(status.st_size));
  }

  const SafetensorsHeader& header() const { return header_; }

  at::Tensor read(const SafetensorsEntry& entry) const {
    at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry.type));
    auto* data = static_cast<char*>(tensor.mutable_data_ptr());
    read_at(data_offset_ + entry.begin, {data, tensor.nbytes()});
    if (entry.type == SafetensorsType::BOOL) check_truth_values(entry, {data, tensor.nbytes()});
    return tensor;
  }

 private:
  void read_header(std::uint64_t file_size) {
    if (file_size < length_size)
      throw Error(Fault::corrupt, name_ + ": expected the length of the header in 8 bytes, found " +
                                      std::to_string(file_size) + " bytes");
    std::uint64_t length = 0;
    read_at(0, {reinterpret_cast<char*>(&length), length_size});
    if (length > safetensors_header_limit || length > file_size - length_size)
      throw Error(Fault::corrupt, name_ + ": byte 0: expected a header that fits the file of " +
                                      std::to_string(file_size) + " bytes and the limit of " +
                                      std::to_string(safetensors_header_limit) + ", found one of " +
                                      std::to_string(length));
    std::string json(length, '\0');
    read_at(length_size, json);
    data_offset_ = length_size + length;
    header_ = parse_safetensors_header(name_, json, file_size - data_offset_);
  }

  void read_at(std::uint64_t offset, std::span<char> out) const {
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

  // A bool of another value than 0 and 1 is undefined behaviour wherever it is used.
  void check_truth_values(const SafetensorsEntry& entry, std::span<const char> values) const {
    for (const char value : values)
      if (value != 0 && value != 1)
        throw Error(Fault::corrupt, name_ + ": tensor " + shown(entry.name) +
                                        ": expected truth values of 0 and 1, found " +
                                        std::to_string(static_cast<unsigned char>(value)));
  }

  const std::string name_;
  const FileDescriptor fd_;
  std::uint64_t data_offset_ = 0;
  SafetensorsHeader header_;
};

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  return std::string(c10::toString(type)) + " " + c10::str(shape);
}

// What keeps the tensors of a file from being copied into `targets`.
std::vector<std::string> complaints(const SafetensorsHeader& header,
                                    const std::map<std::string, at::Tensor>& targets) {
  std::vector<std::string> found;
  std::set<std::string> present;
  for (const SafetensorsEntry& entry : header.entries) {
    present.insert(entry.name);
    const auto target = targets.find(entry.name);
    if (target == targets.end()) {
      found.push_back(shown(entry.name) + " is not in the module");
      continue;
    }
    const at::ScalarType type = scalar_type_of(entry.type);
    const at::Tensor& tensor = target->second;
    if (type != tensor.scalar_type() || tensor.sizes() != entry.shape)
      found.push_back(shown(entry.name) + " is " + describe(type, entry.shape) + " in the file, " +
                      describe(tensor.scalar_type(), tensor.sizes()) + " in the module");
  }
  for (const auto& [name, tensor] : targets)
    if (!present.contains(name)) found.push_back(shown(name) + " is not in the file");
  return found;
}

void require_fit(const std::filesystem::path& file, const std::vector<std::string>& found) {
  if (found.empty()) return;
  std::string message = file.string() + " does not fit the module: ";
  for (std::size_t i = 0; i < std::min(found.size(), most_complaints); ++i)
    message += (i == 0 ? "" : "; ") + found[i];
  if (found.size() > most_complaints)
    message += "; and " + std::to_string(found.size() - most_complaints) + " more";
  throw Error(Fault::misuse, message);
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    header.entries.push_back(entry_for(name, tensor));
    by_name.emplace(name, tensor);
  }
  lay_out(header);
  const std::string head = format_safetensors_header(header);
  const std::uint64_t data_size = header.entries.empty() ? 0 : header.entries.back().end;

  AtomicFile out(file, head.size() + data_size);
  out.write(std::as_bytes(std::span(head)));
  for (const SafetensorsEntry& entry : header.entries) {
    const at::Tensor values = by_name.at(entry.name).detach().cpu().resolve_neg().contiguous();
    out.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  out.commit();
}

Safetensors load_safetensors(const std::filesystem::path& file) {
  const Reader reader(file);
  Safetensors loaded{.tensors = {}, .metadata = reader.header().metadata};
  for (const SafetensorsEntry& entry : reader.header().entries)
    loaded.tensors.emplace_back(entry.name, reader.read(entry));
  return loaded;
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& file) {
  save_safetensors(file, named_tensors(module), {{"format", "pt"}});
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& file) {
  std::map<std::string, at::Tensor> targets;
  for (auto& [name, tensor] : named_tensors(module)) targets.emplace(name, tensor);
  const Reader reader(file);
  require_fit(file, complaints(reader.header(), targets));

  // All is read before the first is copied, so that a bad disk does not leave half a model.
  NamedTensors loaded;
  for (const SafetensorsEntry& entry : reader.header().entries)
    loaded.emplace_back(entry.name, reader.read(entry));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : loaded) targets.at(name).copy_(tensor);
}

}  // namespace lockstep
