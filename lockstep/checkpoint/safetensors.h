// Tensors in single safetensors files. For modules: weights.h.
//
// Saving writes a temporary file and renames it: the file is always complete, old or new. The bytes
// equal the reference writer's. Tensors may have any device and strides; they are copied to the CPU
// one at a time.
//
// Blocking: saving returns when the file is durable. Errors: system, with the file's name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/weights.h"  // Part of this header's interface.
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

struct Safetensors {
  NamedTensors tensors;  // On the CPU, in the order of the file's data or the requested names.
  std::map<std::string, std::string> metadata;
};

// Errors: misuse for a name that is repeated or not UTF-8, and for an undefined tensor. unsupported
// for a tensor that is not dense, or of a type that the format lacks, such as complex128.
LOCKSTEP_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

// Loads all tensors, or those with these names. Errors: corrupt, naming file and tensor, before
// allocating memory of a claimed size. misuse for a missing name, and for another known file
// format. unsupported for a type that LibTorch lacks, such as F4.
LOCKSTEP_API Safetensors load_safetensors(const std::filesystem::path& file);
LOCKSTEP_API Safetensors load_safetensors(const std::filesystem::path& file,
                                          const std::vector<std::string>& names);

}  // namespace lockstep
