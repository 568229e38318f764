// The header of a safetensors file: which tensors it holds, and where.
//
// The format is frozen: https://github.com/huggingface/safetensors. A file is the length of the
// header in 8 bytes, least significant first; the header, a JSON object; then the data.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// In the order in which the reference writer (safetensors/src/tensor.rs) ranks them: it puts the
// last of these first, so that each tensor is aligned to its elements.
enum class SafetensorsType { BOOL, U8, I8, I16, F16, BF16, I32, F32, C64, F64, I64 };

std::string_view name(SafetensorsType type);
std::size_t size_of(SafetensorsType type);

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // Bytes from the start of the data.
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // In the order of their data.
  std::map<std::string, std::string> metadata;
};

// No model has a longer one; the reference reader has the same limit.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;

// Reads the JSON of `file` (for messages), which describes `data_size` bytes of data.
// Errors: corrupt, naming file and tensor, when the entries do not cover the data exactly, each by
// the bytes that its type and shape take, or when a name occurs twice; unsupported for other types.
SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view json,
                                           std::uint64_t data_size);

// Puts the entries into the reference writer's order and sets begin and end. Errors: misuse for a
// name that occurs twice or is not a tensor's.
void lay_out(SafetensorsHeader& header);

// The length and the JSON of a header that was laid out, padded to whole 8 bytes. Errors: misuse
// for text that is not UTF-8 and for a header beyond the limit.
std::string format_safetensors_header(const SafetensorsHeader& header);

// A name for messages, in quotes. Names come from files: they may be as long as these are, and hold
// what should not reach a terminal.
LOCKSTEP_API std::string shown(std::string_view name);

}  // namespace lockstep
