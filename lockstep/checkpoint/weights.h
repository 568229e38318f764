// Saves and loads the weights of models (docs/guide/checkpoints.md).
//
//   lockstep::load_weights(*model, "SmolLM-135M", {.convert_types = true});  // From bfloat16.
//   lockstep::save_weights(*model, "fine-tuned", {.max_shard_bytes = 2'000'000'000});  // 2 GB.
//
// load_weights() accepts a safetensors file, an index such as model.safetensors.index.json, or a
// folder: its index, otherwise its model.safetensors, otherwise all its *.safetensors. It also
// accepts a checkpoint, and a folder of checkpoints, of which it loads the latest. Each rank reads
// its parts of sharded or shared parameters directly into their memory. A transposed matrix, and a
// converted tensor of a checkpoint, temporarily need memory for a copy.
//
// Errors of load_weights(), with nothing loaded: misuse, listing the names, if names, types or
// shapes do not fit. misuse for a file of another known format, and for a folder without weights.
// mismatch, naming both, for unequal values of two names of one tensor. unsupported for a tensor of
// the model that has a type in the file that LibTorch lacks.
// Other Errors: corrupt or system if a file is damaged or cannot be read; the message reports
// partially loaded weights. With a group the call is collective, and all ranks throw the same
// Error; mismatch if arguments or files differ.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/name_table.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace torch::jit {
struct Module;
}
namespace torch::nn {
class Module;
}

namespace lockstep {

struct LoadWeightsOptions {
  NameTable names = {};        // Maps names in the files to names in the model.
  std::string part = "model";  // Part of a checkpoint.

  // Whether other floating-point types, such as bfloat16, are converted to the model's. Otherwise
  // another type is an Error.
  bool convert_types = false;

  // Regular expressions (as in NameRule) for names in the model, such as "classifier\\..+" of a new
  // head. A matching tensor keeps its value if the files lack it. To keep a tensor that the files
  // have, ignore it in `names`.
  std::vector<std::string> may_be_missing = {};

  // For a Stateful that is not a WeightState (lockstep/tensor/weight_state.h): maps further names
  // of a tensor to its first name.
  std::map<std::string, std::string> first_names = {};

  // Limit of each wait for other ranks, which may be reading from a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

struct LoadedWeights {
  std::vector<std::string> kept;     // Names in the model that the files lack.
  std::vector<std::string> ignored;  // Names in the files that LoadWeightsOptions::names ignores.
};

// Loads a module on any device, in this process. It reads this rank's parts of parameters that are
// sharded over ranks (parallelize_module()). Errors: also misuse for a module on the meta device,
// and for one whose parameters ranks share: load its DistributedDataParallel instead
// (lockstep/train/training_state.h).
LOCKSTEP_API LoadedWeights load_weights(torch::nn::Module& module,
                                        const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});

// The same with names alone. It is a template, so that {.names = ...} is always the options.
template <std::same_as<NameTable> Names>
LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                           const Names& names) {
  return load_weights(module, path, LoadWeightsOptions{.names = names});
}

LOCKSTEP_API LoadedWeights load_weights(const torch::jit::Module& script,
                                        const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});
template <std::same_as<NameTable> Names>
LoadedWeights load_weights(const torch::jit::Module& script, const std::filesystem::path& path,
                           const Names& names) {
  return load_weights(script, path, LoadWeightsOptions{.names = names});
}

// Collective: the same on all ranks of `group`.
LOCKSTEP_API LoadedWeights load_weights(torch::nn::Module& module,
                                        const std::filesystem::path& path,
                                        const ProcessGroup& group,
                                        const LoadWeightsOptions& options = {});

// Collective: loads the state of a model, such as data_parallel_state().
LOCKSTEP_API LoadedWeights load_weights(Stateful& state, const std::filesystem::path& path,
                                        const ProcessGroup& group,
                                        const LoadWeightsOptions& options = {});

// Saves named_tensors(module) in one file, with metadata that marks the names as PyTorch's. Errors:
// as save_safetensors(); misuse for a module that holds parts of its parameters (sharded_module.h).
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);
LOCKSTEP_API void save_weights(const torch::jit::Module& script, const std::filesystem::path& file);

struct SaveWeightsOptions {
  // Limit of the tensors in one file; a larger tensor has its own file. The default is
  // huggingface_hub's.
  std::uint64_t max_shard_bytes = 5'000'000'000;

  NameTable names = {};  // Maps names in the model to names in the files.

  // Type to which floating-point tensors are converted, such as torch::kBFloat16.
  std::optional<at::ScalarType> type = {};

  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // As LoadWeightsOptions::timeout.
};

// Saves named_tensors(module) to a folder in Hugging Face's layout, and creates the folder. A
// tensor with several names is saved under the first one, as by Python's save_model(). Removes
// weights that were saved there before, and no other files.
// Errors: as save_safetensors(); misuse for a module that holds parts of its parameters, and if
// `names` maps two tensors to one name. Invalid options change nothing on the disk. After other
// Errors, no file of the new model is left, and no folder that the call created.
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& folder,
                               const SaveWeightsOptions& options);

// Collective: saves any model likewise. Rank 0 writes the files, with one tensor in memory at a
// time. A temporary checkpoint in the folder holds the weights, so the disk needs twice their size.
LOCKSTEP_API void save_weights(Stateful& state, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});
LOCKSTEP_API void save_weights(torch::nn::Module& module, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});

}  // namespace lockstep
