// A tensor of a checkpoint on the disk, and how parts of it are read.
//
// Thread safety: all of it may be called from any thread at once.
// Errors: corrupt, naming file and tensor; system when the file cannot be read.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/placed_box.h"

namespace lockstep::checkpoint {

struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  std::uint32_t crc32c = 0;  // Of all its bytes.

  std::uint64_t bytes() const { return entry->end - entry->begin; }
  std::int64_t elements() const;

  // Reads and sums all bytes, and keeps those of `boxes` at their places in `out`. The boxes have
  // elements, and may overlap. Where 256 KB or more that follow each other are wanted, they are
  // read to their place; all else passes through 256 KB of scratch memory. So a read takes about
  // one system call for 256 KB, however the boxes are cut.
  void read(const std::vector<PlacedBox>& boxes, std::span<std::byte> out) const;

  // Reads without keeping.
  void verify() const { read({}, {}); }
};

}  // namespace lockstep::checkpoint
