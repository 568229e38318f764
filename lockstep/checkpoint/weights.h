// Saves and loads the weights of models: files of safetensors, folders of them in Hugging Face's
// layout, and checkpoints.
//
//   lockstep::load_weights(*model, "SmolLM-135M", {.convert_types = true});
//   lockstep::save_weights(*model, "fine-tuned", {.max_shard_bytes = 2'000'000'000});
//
// A path to load from is one of these:
//   - a file of safetensors;
//   - an index, such as model.safetensors.index.json: it decides which files and tensors count;
//   - a folder: its index if there is one, otherwise its model.safetensors, otherwise all of its
//     *.safetensors together;
//   - a checkpoint, or a folder of checkpoints, of which the latest is loaded.
//
// Each rank reads its own parts of parameters that are cut or shared, to the place where they lie.
// A transposed matrix, and a converted tensor of a checkpoint, need memory for one copy meanwhile.
//
// Errors of load_weights(): misuse if names, types or shapes do not fit. The message lists missing
// and surplus names side by side. mismatch, naming both, if two names of one tensor have unequal
// elements. unsupported for a tensor that the model needs and whose type LibTorch lacks. Nothing
// was loaded then. corrupt or system if a file cannot be read or is damaged. The weights are half
// loaded if the message says so.
// With a group the call is collective, and all ranks throw the same Error; mismatch if the ranks
// have different arguments or files.

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
  NameTable names = {};        // Maps the names in the files to those of the model.
  std::string part = "model";  // Part of a checkpoint.

  // Whether tensors of another floating-point type, such as bfloat16, are converted to the type in
  // the model. Otherwise another type is an Error.
  bool convert_types = false;

  // Regular expressions (as in NameRule) for names in the model, such as "classifier\\..+" of a new
  // head. A tensor that matches keeps its value if the files lack it. To keep a tensor that the
  // files have, too, ignore it in `names`.
  std::vector<std::string> may_be_missing = {};

  // Further names of a tensor in a Stateful that is no WeightState
  // (lockstep/tensor/weight_state.h), each with the first one: what both have must be equal.
  std::map<std::string, std::string> first_names = {};

  // Limit of each wait for other ranks, which may be reading from a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// The names that were not loaded.
struct LoadedWeights {
  std::vector<std::string> kept;     // Names in the model: the files lack them.
  std::vector<std::string> ignored;  // Names in the files: LoadWeightsOptions::names ignores them.
};

// Loads a module on any device, in this process. This rank reads its own part of parameters that
// are cut over ranks (parallelize_module()).
// Errors: in addition, misuse for a module on the meta device, and for one whose parameters ranks
// share: load its DistributedDataParallel (lockstep/train/training_state.h).
LOCKSTEP_API LoadedWeights load_weights(torch::nn::Module& module,
                                        const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});

// The same with names alone. A template, so that {.names = ...} is always the options.
template <std::same_as<NameTable> Names>
LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                           const Names& names) {
  return load_weights(module, path, LoadWeightsOptions{.names = names});
}

// The same for a TorchScript module.
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

// Saves named_tensors(module) in one file, with metadata that marks the names as PyTorch's.
// Errors: as save_safetensors(); misuse for a module that holds parts of its parameters
// (sharded_module.h).
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);
LOCKSTEP_API void save_weights(const torch::jit::Module& script, const std::filesystem::path& file);

struct SaveWeightsOptions {
  // Limit of the tensors in one file; a larger tensor has a file of its own. The default is that of
  // huggingface_hub.
  std::uint64_t max_shard_bytes = 5'000'000'000;

  NameTable names = {};  // Maps the names of the model to those in the files.

  // Type to which floating-point tensors are converted, such as torch::kBFloat16.
  std::optional<at::ScalarType> type = {};

  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // As LoadWeightsOptions'.
};

// Saves named_tensors(module) to a folder in Hugging Face's layout: model.safetensors, or
// model-00001-of-00002.safetensors and so on with model.safetensors.index.json, which is written
// last. A tensor with several names is saved under the first, as by Python's save_model(). Creates
// the folder; other files in it stay. Weights that were saved there before are removed first, so
// that files of two models never mix: save to a new folder to keep them.
// Errors: as save_safetensors(); misuse for a module that holds parts of its parameters, and if
// `names` gives two tensors one name. Options that do not fit change nothing on the disk. After
// another Error, no file of the new model is left.
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& folder,
                               const SaveWeightsOptions& options);

// Collective: saves a model of any kind in that layout. Rank 0 writes the files, and has one tensor
// in memory at a time. A checkpoint in the same folder holds the weights meanwhile, so the disk
// needs their size twice.
LOCKSTEP_API void save_weights(Stateful& state, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});
LOCKSTEP_API void save_weights(torch::nn::Module& module, const std::filesystem::path& folder,
                               const ProcessGroup& group, const SaveWeightsOptions& options = {});

}  // namespace lockstep
