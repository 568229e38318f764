// A tensor in a checkpoint or another safetensors file. Thread safety: full. Errors: corrupt,
// naming file and tensor; system if the file cannot be read.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/state.h"

namespace lockstep::checkpoint {

struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  // Covers all bytes; empty outside of a checkpoint.
  std::optional<std::uint32_t> crc32c = {};

  std::uint64_t bytes() const { return entry->end - entry->begin; }
  std::int64_t elements() const;

  // Copies the data of `boxes` to their places in `out`. With a checksum, reads and verifies all
  // bytes; otherwise skips long gaps. No box is empty; boxes may overlap. Copies through 256 KB of
  // scratch memory, except most of a large contiguous box.
  void read(const std::vector<PlacedBox>& boxes, std::span<std::byte> out) const;

  void verify() const { read({}, {}); }

  // Returns `range.into` if set, otherwise a new CPU tensor, with one dimension unless `range` is
  // the whole local tensor.
  at::Tensor read(const ElementRange& range) const;

  // Errors: misuse if boxes, range or `into` do not fit this tensor.
  void require_fit(const ElementRange& range) const;
};

at::Tensor empty_of(const SafetensorsEntry& entry, at::Device device);

}  // namespace lockstep::checkpoint
