// Tensors in files that every other reader of safetensors understands.
//
// Saving writes aside and renames: under its name there is always a whole file, the old or the new.
// The bytes are those that the reference writer produces. Tensors may lie on any device and in any
// order of memory; they are copied to the CPU one at a time.
//
// Blocking: saving returns when the file would outlast a power failure.
// Errors: system, naming the file; the rest with each function.

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
  NamedTensors
      tensors;  // On the CPU, in the order of the file: larger elements first, then by name.
  std::map<std::string, std::string> metadata;
};

// Errors: misuse for a name that occurs twice or is not UTF-8, and for an undefined tensor;
// unsupported for one that is not dense or whose type is none of F64 F32 F16 BF16 C64 I64 I32 I16
// I8 U8 BOOL; C64 is complex64.
LOCKSTEP_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

// Errors: corrupt, naming file and tensor, before anything of a claimed size is allocated;
// unsupported for other types than the above.
LOCKSTEP_API Safetensors load_safetensors(const std::filesystem::path& file);

// What named_tensors(module) lists, with the metadata that says the names are PyTorch's.
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);

// Copies into the tensors of `module`, wherever they are. `names` says what those of the file are
// called there, when it was written by a program that calls them otherwise. Errors: as
// load_safetensors(), and misuse, naming the tensors, when names, types or shapes are not exactly
// the module's, or when two of the file have one name in the module; mismatch, naming both, when
// two that are one tensor in the module have unequal elements in the file. The module is then as it
// was.
LOCKSTEP_API void load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                               const NameTable& names = {});

}  // namespace lockstep
