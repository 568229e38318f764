// Hugging Face's index of a model in several safetensors files.
//
//   {"metadata": {"total_size": 24},
//    "weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}
//
// Needs no LibTorch, for fuzzing.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

using SafetensorsIndex = std::map<std::string, std::string>;

inline constexpr std::string_view safetensors_index_ending = ".safetensors.index.json";

// Ignores everything except `weight_map`. Errors: corrupt, naming `file` and tensor, for invalid
// JSON, no weight_map, a repeated name, or a file outside of the index's folder.
LOCKSTEP_API SafetensorsIndex parse_safetensors_index(std::string_view file, std::string_view json);

// As huggingface_hub: indented by two spaces, sorted, with a final newline. Errors: misuse for text
// that is not UTF-8.
std::string format_safetensors_index(const SafetensorsIndex& index, std::uint64_t total_bytes);

}  // namespace lockstep
