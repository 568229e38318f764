// Input of a command: a checkpoint, or weights in files of safetensors, which are treated as a part
// of one.
//
// Errors: as CheckpointReader's and WeightFiles'.

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

// Nothing readable at a path.
class NoInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Kind::folder is a folder of checkpoints; Kind::weights all that WeightFiles reads. Throws NoInput
// for a missing path, or one of no kind.
Kind kind_of(const std::filesystem::path& path);

class Source {
 public:
  virtual ~Source() = default;

  virtual std::optional<std::int64_t> step() const = 0;  // Empty for weights.
  virtual std::vector<std::string> parts() const = 0;

  // Returned tensors are on the meta device. One of a type that LibTorch lacks stands for its
  // bytes: it is uint8 and has one dimension.
  virtual const StateDict& contents(const std::string& part) const = 0;
  virtual at::Tensor read(const std::string& part, const std::string& tensor) const = 0;
};

// `path` is any that kind_of() accepts; a folder stands for its latest checkpoint. `part` is the
// name under which the tensors of weights are shown.
std::unique_ptr<Source> open_source(const std::filesystem::path& path, const std::string& part);

// Weights in files of safetensors.
class WeightsSource final : public Source {
 public:
  WeightsSource(const std::filesystem::path& path, std::string part);

  std::optional<std::int64_t> step() const override { return std::nullopt; }
  std::vector<std::string> parts() const override { return {part_}; }
  const StateDict& contents(const std::string&) const override { return contents_; }
  at::Tensor read(const std::string& part, const std::string& name) const override;

  const WeightFiles& files() const { return files_; }

  // As in the file, for types that LibTorch lacks; null for others.
  const SafetensorsEntry* other_type(const std::string& name) const;

 private:
  const WeightFiles files_;
  const std::string part_;
  StateDict contents_;
  std::map<std::string, WeightFiles::Tensor> tensors_;
};

// Errors: misuse, with the names of the existing parts.
void require_part(const std::filesystem::path& path, const std::vector<std::string>& parts,
                  const std::string& part);

std::uint64_t bytes_of(const StateDict& state);

}  // namespace lockstep::checkpoint
