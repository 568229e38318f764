// A command's input: a checkpoint, or weights in safetensors files, which count as a part. Errors:
// those of CheckpointReader and WeightFiles.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/checkpoint/weight_files.h"
#include "lockstep/tensor/state.h"

namespace lockstep::checkpoint {

enum class Kind { checkpoint, folder, weights };

// The path contains nothing readable.
class NoInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Kind::folder is a folder of checkpoints; Kind::weights anything that WeightFiles reads. Throws
// NoInput for a missing path, or one of another kind.
Kind kind_of(const std::filesystem::path& path);

class Source {
 public:
  virtual ~Source() = default;

  virtual std::optional<std::int64_t> step() const = 0;  // Empty for weights.
  virtual std::vector<std::string> parts() const = 0;

  // On the meta device. A type that LibTorch lacks is represented by its bytes: one-dimensional
  // uint8.
  virtual const StateDict& contents(const std::string& part) const = 0;
  virtual at::Tensor read(const std::string& part, const std::string& tensor) const = 0;
};

// `path` is any that kind_of() accepts; of a folder, opens the latest checkpoint. `part` is
// displayed for weights.
std::unique_ptr<Source> open_source(const std::filesystem::path& path, const std::string& part);

class WeightsSource final : public Source {
 public:
  WeightsSource(const std::filesystem::path& path, std::string part);

  std::optional<std::int64_t> step() const override { return std::nullopt; }
  std::vector<std::string> parts() const override { return {part_}; }
  const StateDict& contents(const std::string&) const override { return contents_; }
  at::Tensor read(const std::string& part, const std::string& name) const override;

  const WeightFiles& files() const { return files_; }

  // The file's entry for a type that LibTorch lacks; null for other types.
  const SafetensorsEntry* other_type(const std::string& name) const;

 private:
  const WeightFiles files_;
  const std::string part_;
  StateDict contents_;
  std::map<std::string, WeightFiles::Tensor> tensors_;
};

// Errors: misuse, naming the existing parts.
void require_part(const std::filesystem::path& path, const std::vector<std::string>& parts,
                  const std::string& part);

std::uint64_t bytes_of(const StateDict& state);

}  // namespace lockstep::checkpoint
