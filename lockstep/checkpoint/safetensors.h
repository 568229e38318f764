// Tensors in files that every reader of safetensors understands.
//
// Saving writes a temporary file and renames it, so the name always has a complete file, the old or
// the new one. The bytes equal those of the reference writer. Tensors may have any device and
// layout; they are copied to the CPU one at a time.
//
// Blocking: saving returns when the file would survive a power failure.
// Errors: system, naming the file; further ones with each function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/name_table.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

struct Safetensors {
  NamedTensors tensors;  // On the CPU, in file order: larger elements first, then by name.
  std::map<std::string, std::string> metadata;
};

// Errors: misuse for a name that occurs twice or is not UTF-8, and for an undefined tensor;
// unsupported for a tensor that is not dense or whose type is none of F64 F32 F16 BF16 C64 I64 I32
// I16 I8 U8 BOOL; C64 is complex64.
LOCKSTEP_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

// Errors: corrupt, naming file and tensor, before memory of a claimed size is allocated;
// unsupported for types other than those of save_safetensors().
LOCKSTEP_API Safetensors load_safetensors(const std::filesystem::path& file);

// Saves named_tensors(module), with metadata that marks the names as PyTorch's.
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);

// Copies the file's tensors into those of `module`, on any device. `names` maps the file's names to
// the module's, for files of programs with other names.
// Errors: as load_safetensors(); misuse, naming the tensors, if names, types or shapes are not
// exactly the module's, or if two tensors of the file have one name in the module; mismatch, naming
// both, if two names of one tensor have unequal elements in the file. The module is then unchanged.
LOCKSTEP_API void load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                               const NameTable& names = {});

}  // namespace lockstep
