// Reads and verifies a complete checkpoint.
//
//   const lockstep::CheckpointReader saved("runs/a/step-0000000100");
//   const at::Tensor weight = saved.read("model", "conv.weight");
//
// Thread safety: full after construction.
// Errors: corrupt if a file is damaged or missing; unsupported for a later format; system.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class LOCKSTEP_API CheckpointReader {
 public:
  // Verifies the manifest and all headers. `directory` is a checkpoint or a link to it.
  explicit CheckpointReader(const std::filesystem::path& directory);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::filesystem::path& directory() const;
  std::int64_t step() const;
  int world_size() const;  // Number of ranks that saved it.

  std::vector<std::string> parts() const;

  struct File {
    std::string name;
    std::string part;
    std::uint64_t bytes = 0;
  };
  std::vector<File> files() const;

  // Values, and tensors on the meta device. Errors: misuse for a missing part.
  const StateDict& contents(const std::string& part) const;

  // On the CPU. Errors: misuse for a missing tensor.
  at::Tensor read(const std::string& part, const std::string& tensor) const;

  // Reads the requested elements of a part, and all its values. Without `into`, a whole local
  // tensor (state.h) is returned in its shape, a range of it in one dimension.
  // Errors: misuse for boxes or elements that do not exist or do not fit `into`.
  StateDict read(const std::string& part, const StateRequest& request) const;

  // Throws misuse as read(), without reading data.
  void require_readable(const std::string& part, const StateRequest& request) const;

  // Checks the tensor's checksum.
  void verify(const std::string& part, const std::string& tensor) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace lockstep
