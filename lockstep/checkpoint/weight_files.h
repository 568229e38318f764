// The tensors of a model in safetensors files, which load_weights() accepts (weights.h).
//
// Thread safety: full.
// Errors: as SafetensorsFile's and parse_safetensors_index()'s. system, naming the index, if a
// listed file is missing; corrupt if a listed tensor is missing in its file. misuse for a name in
// two files without an index, and for a folder without such files. misuse for a folder with several
// indexes, none named model.safetensors.index.json, and for an index named *.bin.index.json.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_index.h"

namespace lockstep {

class LOCKSTEP_API WeightFiles {
 public:
  // Reads all headers.
  explicit WeightFiles(const std::filesystem::path& path);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  // With an index, sorted by file and name; otherwise by file and position.
  const std::vector<Tensor>& tensors() const { return tensors_; }

  const std::vector<std::unique_ptr<const SafetensorsFile>>& files() const { return files_; }

  // The index that was read.
  const std::optional<std::filesystem::path>& index() const { return index_; }

 private:
  void open_indexed(const std::filesystem::path& index);
  void open_all(const std::vector<std::filesystem::path>& files);

  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::vector<Tensor> tensors_;
  std::optional<std::filesystem::path> index_;
};

// Whether `path` is for WeightFiles: it is no folder, or has no manifest but has an index,
// safetensors, or pickles without checkpoints. Errors: system, naming the folder.
LOCKSTEP_API bool has_weight_files(const std::filesystem::path& path);

// `path` if it is for WeightFiles, otherwise the checkpoint there or the newest one in it. Errors:
// misuse, with the folder's contents, if there is neither.
std::string place_of_weights(const std::filesystem::path& path);

}  // namespace lockstep
