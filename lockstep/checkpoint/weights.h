// Saves and loads weights of models (docs/guide/checkpoints.md).
//
//   lockstep::load_weights(*model, "SmolLM-135M", {.convert_types = true});  // From bfloat16.
//   lockstep::save_weights(*model, "fine-tuned", {.max_shard_bytes = 2'000'000'000});  // 2 GB.
//
// load_weights() accepts a safetensors file, an index such as model.safetensors.index.json, or a
// folder: its index, otherwise its model.safetensors, otherwise all its *.safetensors. It also
// accepts a checkpoint, or a folder of checkpoints: the one of the highest step. Each rank loads
// only its parts of parameters that ranks shard or share. It reads contiguous tensors on the CPU in
// place. Tensors on a device, transposed matrices and converted tensors of a checkpoint temporarily
// need a copy.
//
// Errors of load_weights(), with nothing loaded: misuse, listing the names, if names, types or
// shapes do not fit. misuse for another known file format, and for a folder without weights.
// mismatch, naming both, for unequal values of two names of one tensor. unsupported if
// LibTorch lacks the type of a needed tensor.
// Other Errors: corrupt or system for a damaged or unreadable file; the message reports whether
// weights are partially loaded. With a group, all ranks throw the same Error; mismatch if paths, or
// names, types or shapes in the files, differ between ranks.

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
  NameTable names = {};        // From the files to the model.
  std::string part = "model";  // Part of a checkpoint.

  // Whether to convert other floating-point types, such as bfloat16, to the model's. Otherwise
  // another type is an Error.
  bool convert_types = false;

  // Regular expressions (as in NameRule) for names in the model, such as "classifier\\..+" of a new
  // head. Matching tensors that the files lack keep their values. To keep a tensor that the files
  // have, also ignore it in `names`.
  std::vector<std::string> may_be_missing = {};

  // For a Stateful other than a WeightState (lockstep/tensor/weight_state.h): first_names() of its
  // tensors (lockstep/tensor/named_tensors.h).
  std::map<std::string, std::string> first_names = {};

  // Limit of each wait for other ranks, which may be reading from a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

struct LoadedWeights {
  std::vector<std::string> kept;     // Names that the files lack.
  std::vector<std::string> ignored;  // Names that LoadWeightsOptions::names ignores.
};

// Loads a module on any device, in this process; of sharded parameters (parallelize_module()), this
// rank's parts. Errors: also misuse for a module on the meta device, and for parameters shared
// by ranks: load the DistributedDataParallel instead (lockstep/train/training_state.h).
LOCKSTEP_API LoadedWeights load_weights(torch::nn::Module& module,
                                        const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});

// The same with names alone. As a template, it never accepts {.names = ...}, which are options.
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

// Collective.
LOCKSTEP_API LoadedWeights load_weights(torch::nn::Module& module,
                                        const std::filesystem::path& path,
                                        const ProcessGroup& group,
                                        const LoadWeightsOptions& options = {});

// Collective; for a model's state, such as state_of(ddp).
LOCKSTEP_API LoadedWeights load_weights(Stateful& state, const std::filesystem::path& path,
                                        const ProcessGroup& group,
                                        const LoadWeightsOptions& options = {});

// Saves named_tensors(module) in one file, with the metadata {"format": "pt"}. Errors: as
// save_safetensors(); misuse for parts of parameters (sharded_module.h).
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);
LOCKSTEP_API void save_weights(const torch::jit::Module& script, const std::filesystem::path& file);

struct SaveWeightsOptions {
  // Per file; a larger tensor has its own. The default is huggingface_hub's.
  std::uint64_t max_shard_bytes = 5'000'000'000;

  NameTable names = {};  // From the model to the files.

  // Converts floating-point tensors to this type, such as torch::kBFloat16.
  std::optional<at::ScalarType> type = {};

  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // As LoadWeightsOptions::timeout.
};

// Saves named_tensors(module) to a folder in Hugging Face's layout, and creates the folder. A
// tensor with several names is saved under the first one, as by Python's save_model(). Removes
// weights saved there before, and no other files.
// Errors: as for one file; misuse if `names` maps two tensors to one name. Invalid options change
// nothing on the disk. Other Errors leave no new files or folders, and perhaps no earlier weights.
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& folder,
                               const SaveWeightsOptions& options);

// Collective, for any model. Rank 0 writes the files, with one tensor in memory at a time. A
// temporary checkpoint in the folder holds the weights: the disk needs twice their size.
LOCKSTEP_API void save_weights(Stateful& state, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});
LOCKSTEP_API void save_weights(torch::nn::Module& module, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});

}  // namespace lockstep
