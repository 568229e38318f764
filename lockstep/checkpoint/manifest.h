// manifest.json: the contents of a checkpoint, with checksums (docs/checkpoint-format.md). Needs no
// LibTorch, for fuzzing.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/state_types.h"

namespace lockstep {

struct ManifestFile {
  std::string name;  // Such as "model-00001-of-00002.safetensors".
  std::string part;  // Such as "model".
  std::uint64_t bytes = 0;
  std::uint32_t header_crc32c = 0;               // Covers all bytes before the tensors' data.
  std::map<std::string, std::uint32_t> tensors;  // CRC-32C of each tensor's data.
};

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::vector<ManifestFile> files;
  std::map<std::string, StateValues> values;  // For each part.
};

// In bytes.
inline constexpr std::uint64_t manifest_limit = 64 << 20;

// Returns JSON whose last member is the CRC-32C of all bytes before it. Errors: misuse for text
// that is not UTF-8, an invalid name of a file or part, and beyond the limit.
std::string format_manifest(const Manifest& manifest);

// Errors: corrupt, naming `file` and the problem, for all contents that format_manifest() would not
// write. This includes unknown or repeated keys and names that lead out of the folder. unsupported
// for a later version.
Manifest parse_manifest(std::string_view file, std::string_view text);

// 1 to 64 letters, digits, '_' and '-', not beginning with '-'.
bool is_part_name(std::string_view name);

}  // namespace lockstep
