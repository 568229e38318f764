// A checkpoint that was found whole: what is in it, and its tensors one by one.
//
//   const lockstep::CheckpointReader saved("runs/a/step-100");
//   const at::Tensor weight = saved.read("model", "conv.weight");
//
// Whatever is read has been verified: a flipped bit or a missing end is an Error.
//
// Thread safety: all members but the constructor may be called from any thread at once.
// Errors: corrupt, naming file and tensor; system when a file cannot be read.

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
  // Reads and verifies the manifest and all headers. `directory` is that of one checkpoint, or a
  // link to it such as "latest".
  explicit CheckpointReader(const std::filesystem::path& directory);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::filesystem::path& directory() const;
  std::int64_t step() const;
  int world_size() const;  // Of the ranks that saved it.

  std::vector<std::string> parts() const;

  struct File {
    std::string name;
    std::string part;
    std::uint64_t bytes = 0;
  };
  std::vector<File> files() const;

  // Values, and tensors on the meta device. Errors: misuse for a part that is not there.
  const StateDict& contents(const std::string& part) const;

  // On the CPU. Errors: misuse for a tensor that is not there.
  at::Tensor read(const std::string& part, const std::string& tensor) const;

  // Reads the requested elements of a part, and all its values. Without `into`, a local tensor that
  // is requested whole has its shape (local_shape()), and a part of one has one dimension. Errors:
  // misuse for boxes or elements that are not there, or do not fit where they should go.
  StateDict read(const std::string& part, const StateRequest& request) const;

  // Throws the misuse that read() would, and reads nothing.
  void require_readable(const std::string& part, const StateRequest& request) const;

  // Reads without keeping.
  void verify(const std::string& part, const std::string& tensor) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace lockstep
