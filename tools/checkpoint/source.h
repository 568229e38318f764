// What a command reads: a checkpoint, or one file of safetensors as if it were a part of one.
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

// There is nothing to read at a path.
class NoInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `folder` is one that holds checkpoints. Throws NoInput for anything else, and for nothing.
Kind kind_of(const std::filesystem::path& path);

class Source {
 public:
  virtual ~Source() = default;

  virtual std::optional<std::int64_t> step() const = 0;  // Nothing of a file.
  virtual std::vector<std::string> parts() const = 0;

  // Tensors are on the meta device.
  virtual const StateDict& contents(const std::string& part) const = 0;
  virtual at::Tensor read(const std::string& part, const std::string& tensor) const = 0;
};

// `path` is any that kind_of() takes; of a folder it is the latest. `part` is what the tensors of a
// file are called.
std::unique_ptr<Source> open_source(const std::filesystem::path& path, const std::string& part);

// Errors: misuse, naming those that there are.
void require_part(const std::filesystem::path& path, const std::vector<std::string>& parts,
                  const std::string& part);

std::uint64_t bytes_of(const StateDict& state);

}  // namespace lockstep::checkpoint
