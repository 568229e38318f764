// A tensor of a checkpoint or of another file of safetensors, and how parts of it are read.
//
// Thread safety: all of it may be called from any thread at once.
// Errors: corrupt, naming file and tensor; system when the file cannot be read.

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
  std::optional<std::uint32_t> crc32c = {};  // Of all its bytes; empty outside of a checkpoint.

  std::uint64_t bytes() const { return entry->end - entry->begin; }
  std::int64_t elements() const;

  // Reads and sums all bytes, and keeps those of `boxes` at their places in `out`. Without a sum to
  // compare, it leaves out gaps between the wanted bytes. The boxes have
  // elements, and may overlap. Where 256 KB or more that follow each other are wanted, they are
  // read to their place; all else passes through 256 KB of scratch memory. So a read takes about
  // one system call for 256 KB, however the boxes are cut.
  void read(const std::vector<PlacedBox>& boxes, std::span<std::byte> out) const;

  // Reads without keeping.
  void verify() const { read({}, {}); }

  // Reads elements to `into`, or to a new tensor. That has the shape of the local tensor if all of
  // it is wanted, and otherwise one dimension. Errors: as require_fit().
  at::Tensor read(const ElementRange& range) const;

  // Errors: misuse for boxes or elements that are not there, or do not fit `into`.
  void require_fit(const ElementRange& range) const;
};

// A tensor with the type and shape of `entry`, uninitialised.
at::Tensor empty_of(const SafetensorsEntry& entry, at::Device device);

}  // namespace lockstep::checkpoint
