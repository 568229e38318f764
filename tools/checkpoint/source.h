// Input of a command: a checkpoint, or one safetensors file that is treated as a part of one.
//
// Errors: as CheckpointReader's and load_safetensors()'s.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/tensor/state.h"

namespace lockstep::checkpoint {

enum class Kind { checkpoint, folder, file };

// Nothing readable at a path.
class NoInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Kind::folder is a folder of checkpoints. Throws NoInput for a missing path, or one of no kind.
Kind kind_of(const std::filesystem::path& path);

class Source {
 public:
  virtual ~Source() = default;

  virtual std::optional<std::int64_t> step() const = 0;  // Empty for a file.
  virtual std::vector<std::string> parts() const = 0;

  // Returned tensors are on the meta device.
  virtual const StateDict& contents(const std::string& part) const = 0;
  virtual at::Tensor read(const std::string& part, const std::string& tensor) const = 0;
};

// `path` is any that kind_of() accepts; a folder stands for its latest checkpoint. `part` is the
// name under which a file's tensors are shown.
std::unique_ptr<Source> open_source(const std::filesystem::path& path, const std::string& part);

// Errors: misuse, with the names of the existing parts.
void require_part(const std::filesystem::path& path, const std::vector<std::string>& parts,
                  const std::string& part);

std::uint64_t bytes_of(const StateDict& state);

}  // namespace lockstep::checkpoint
