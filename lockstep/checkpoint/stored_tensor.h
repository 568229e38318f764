// A tensor in a checkpoint or another safetensors file. It can be read in parts.
//
// Thread safety: several threads may call all members at once.
// Errors: corrupt, naming file and tensor; system if the file cannot be read.

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
  // Checksum of all its bytes; empty outside of a checkpoint.
  std::optional<std::uint32_t> crc32c = {};

  std::uint64_t bytes() const { return entry->end - entry->begin; }
  std::int64_t elements() const;

  // Reads all bytes, verifies the checksum, and copies those of `boxes` to their places in `out`.
  // Without a checksum, it skips gaps between the requested bytes. Boxes are not empty, and may
  // overlap. Contiguous requests of at least 256 KB are read directly to their destination, all
  // others through 256 KB of scratch memory. A read thus needs about one system call per 256 KB,
  // however the boxes are cut.
  void read(const std::vector<PlacedBox>& boxes, std::span<std::byte> out) const;

  // Verifies the checksum without keeping data.
  void verify() const { read({}, {}); }

  // Reads elements to `into`, or to a new tensor. The new tensor has the local tensor's shape if
  // all of it is requested, otherwise one dimension. Errors: as require_fit().
  at::Tensor read(const ElementRange& range) const;

  // Errors: misuse for boxes or elements that do not exist or do not fit `into`.
  void require_fit(const ElementRange& range) const;
};

// A tensor with the type and shape of `entry`, uninitialised.
at::Tensor empty_of(const SafetensorsEntry& entry, at::Device device);

}  // namespace lockstep::checkpoint
