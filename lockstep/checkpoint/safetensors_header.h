// The header of a safetensors file (https://github.com/huggingface/safetensors). A file consists of
// the header's length in 8 bytes, little-endian; the header, a JSON object; then the data.

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

// In the order of the reference writer (safetensors/src/tensor.rs), which writes the last of these
// types first, to align each tensor to its elements. OTHER: all other types, such as F4.
enum class SafetensorsType {
  OTHER,
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64
};

std::string_view name(SafetensorsType type);
std::size_t size_of(SafetensorsType type);  // In bytes; 1 for OTHER.

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::F32;
  std::string other_type = {};  // The name in the file, if `type` is OTHER.
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // Byte offset in the data.
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // In the order of their data.
  std::map<std::string, std::string> metadata;
};

// The reference reader's limit.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;

// Errors: corrupt, naming `file` and tensor. Each entry's size must fit its type and shape, names
// must be unique, and the entries must cover the `data_size` bytes exactly. Type OTHER may have any
// size.
SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view json,
                                           std::uint64_t data_size);

// Sorts the entries, and sets begin and end. Errors: misuse for a repeated or reserved name, type
// OTHER, and a size beyond 63 bits.
void lay_out(SafetensorsHeader& header);

// Returns length and JSON, padded to a multiple of 8 bytes. Requires lay_out(). Errors: misuse for
// text that is not UTF-8, and for JSON beyond the limit.
std::string format_safetensors_header(const SafetensorsHeader& header);

// Type and shape, such as "F32 [2, 3]".
LOCKSTEP_API std::string describe(const SafetensorsEntry& entry);

// Quotes a name, perhaps long or with control characters, for messages.
LOCKSTEP_API std::string shown(std::string_view name);

}  // namespace lockstep
