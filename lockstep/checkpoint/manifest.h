// manifest.json: what a checkpoint holds, and how to tell that it still does.
//
// The format is frozen: docs/checkpoint-format.md. Torch-free, so that it can be fuzzed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/state_value.h"

namespace lockstep {

struct ManifestFile {
  std::string name;  // In the manifest's own folder, such as "model-00001-of-00002.safetensors".
  std::string part;  // Of the state, such as "model".
  std::uint64_t bytes = 0;
  std::uint32_t header_crc32c = 0;               // Of all that precedes the tensors' data.
  std::map<std::string, std::uint32_t> tensors;  // CRC-32C of the data of each.
};

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;  // Of the ranks that saved it.
  std::vector<ManifestFile> files;
  std::map<std::string, StateValues> values;  // Of each part, also of those that have none.
};

// No checkpoint has a longer one.
inline constexpr std::uint64_t manifest_limit = 64 << 20;

// JSON in UTF-8 whose last member is the CRC-32C of all bytes before it. Errors: misuse for a text
// that is not UTF-8, for the name of a file or part that may not be one, and beyond the limit.
std::string format_manifest(const Manifest& manifest);

// Errors: corrupt, naming `file` and what is wrong, for anything that format_manifest() would not
// write: another CRC, a key that is unknown, absent or there twice, a value of another type, a name
// that leads elsewhere, a tensor in two files of a part; unsupported for a later version.
Manifest parse_manifest(std::string_view file, std::string_view text);

// Whether a part may be called so: 1 to 64 letters, digits, '_' and '-', not beginning with '-'.
bool is_part_name(std::string_view name);

}  // namespace lockstep
