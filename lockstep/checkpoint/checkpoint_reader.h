// Reads the contents and the tensors of a complete checkpoint, and verifies checksums.
//
//   const lockstep::CheckpointReader saved("runs/a/step-0000000100");
//   const at::Tensor weight = saved.read("model", "conv.weight");
//
// Thread safety: several threads may call all members at once, except the constructor.
// Errors: corrupt, naming file and tensor, for damaged data; system if a file cannot be read.

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
  // Verifies the manifest and all headers. `directory` is a checkpoint's folder or a link to it.
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

  // The values of a part, and its tensors on the meta device. Errors: misuse for a missing part.
  const StateDict& contents(const std::string& part) const;

  // Returns a tensor on the CPU. Errors: misuse for a missing tensor.
  at::Tensor read(const std::string& part, const std::string& tensor) const;

  // Reads the requested elements of a part, and all its values. Without `into`, the result for a
  // whole local tensor has the shape local_shape(); for a part of a tensor it has one dimension.
  // Errors: misuse for boxes or elements that do not exist, or do not fit the destination.
  StateDict read(const std::string& part, const StateRequest& request) const;

  // Throws misuse where read() would throw it, without reading data.
  void require_readable(const std::string& part, const StateRequest& request) const;

  // Reads the tensor and verifies its checksum.
  void verify(const std::string& part, const std::string& tensor) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace lockstep
