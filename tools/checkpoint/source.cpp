// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointSource final : public Source {
 public:
  explicit CheckpointSource(const fs::path& path) : reader_(path) {}

  std::optional<std::int64_t> step() const override { return reader_.step(); }
  std::vector<std::string> parts() const override { return reader_.parts(); }
  const StateDict& contents(const std::string& part) const override {
    return reader_.contents(part);
  }
  at::Tensor read(const std::string& part, const std::string& tensor) const override {
    return reader_.read(part, tensor);
  }

 private:
  const CheckpointReader reader_;
};

at::Tensor empty_like(const SafetensorsEntry& entry, at::Device device) {
  const auto type = find_scalar_type(entry.type);
  const auto bytes = static_cast<std::int64_t>(entry.end - entry.begin);
  return type ? at::empty(entry.shape, at::dtype(*type).device(device))
              : at::empty({bytes}, at::dtype(at::kByte).device(device));
}

// By name, or as in a safetensors file, where '{' follows the header length's eight
// bytes.
bool may_be_weights(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const char* ending : {".safetensors", ".json", ".bin", ".pt", ".pth"})
    if (name.ends_with(ending)) return true;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return true;  // Not read here: perhaps a FIFO.
  std::array<char, 9> beginning{};
  std::ifstream(file, std::ios::binary).read(beginning.data(), beginning.size());
  return beginning.back() == '{';
}

}  // namespace

Kind kind_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && error != std::errc::no_such_file_or_directory)
    throw NoInput(path.string() + ": " + error.message());
  if (!fs::exists(status)) throw NoInput(path.string() + ": there is no such file or folder");
  if (fs::exists(path / "manifest.json", error)) return Kind::checkpoint;
  if (fs::is_directory(status) && !list_checkpoints(path).empty()) return Kind::folder;
  if (!fs::is_directory(status) && !may_be_weights(path))
    throw NoInput(path.string() +
                  " is neither a folder nor a safetensors file: give a checkpoint's folder, or "
                  "weights");
  if (has_weight_files(path)) return Kind::weights;
  throw NoInput(path.string() +
                " holds no checkpoint: it has neither a manifest.json nor folders such as "
                "step-0000000100, nor *.safetensors");
}

WeightsSource::WeightsSource(const fs::path& path, std::string part)
    : files_(path), part_(std::move(part)) {
  for (const WeightFiles::Tensor& each : files_.tensors()) {
    contents_.tensors.emplace(each.entry->name, whole(empty_like(*each.entry, at::kMeta)));
    tensors_.emplace(each.entry->name, each);
  }
}

at::Tensor WeightsSource::read(const std::string&, const std::string& name) const {
  const WeightFiles::Tensor& source = tensors_.at(name);
  at::Tensor tensor = empty_like(*source.entry, at::kCPU);
  source.file->read(*source.entry, 0,
                    {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

const SafetensorsEntry* WeightsSource::other_type(const std::string& name) const {
  const SafetensorsEntry* const entry = tensors_.at(name).entry;
  return entry->type == SafetensorsType::OTHER ? entry : nullptr;
}

std::unique_ptr<Source> open_source(const fs::path& path, const std::string& part) {
  switch (kind_of(path)) {
    case Kind::weights:
      return std::make_unique<WeightsSource>(path, part);
    case Kind::folder:
      return std::make_unique<CheckpointSource>(*latest_checkpoint(path));
    case Kind::checkpoint:
      return std::make_unique<CheckpointSource>(path);
  }
  throw Error(Fault::bug, "no such kind of source");
}

void require_part(const fs::path& path, const std::vector<std::string>& parts,
                  const std::string& part) {
  require(std::ranges::count(parts, part) != 0, [&] {
    std::string message = path.string() + " has no part " + shown(part) + ", but: ";
    for (std::size_t i = 0; i < parts.size(); ++i) message += (i == 0 ? "" : ", ") + parts[i];
    return message;
  });
}

std::uint64_t bytes_of(const StateDict& state) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) bytes += tensor.data.nbytes();
  return bytes;
}

}  // namespace lockstep::checkpoint
