// Reads IDX files, the format of MNIST and similar datasets, plain or packed by gzip.
//
// Errors: corrupt, naming file, byte, expected and found, before memory of a claimed size is
// allocated; unsupported for elements that are not unsigned bytes; system, also for more values
// than fit into memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct IdxArray {
  std::vector<std::uint32_t> shape;  // 1 to 8 dimensions, the outermost first.
  std::vector<std::uint8_t> values;  // The last dimension is contiguous.
};

// Detects gzip by the contents, not by the name: browsers unpack a .gz and keep its name.
LOCKSTEP_API IdxArray read_idx(const std::filesystem::path& file);

}  // namespace lockstep
