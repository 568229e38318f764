// This rank's share of one checkpoint: the tensors that it writes, and the pieces that others
// write.
//
// Thread safety: none, but write() may run on another thread than the rest.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/output_file.h"
#include "lockstep/checkpoint/save_plan.h"
#include "lockstep/checkpoint/snapshot_memory.h"
#include "lockstep/comm/work.h"

namespace lockstep {

class CheckpointWriter {
 public:
  // `states` are this rank's. Refers to their memory until copy_into() or write() has read it.
  CheckpointWriter(SavePlan plan, const NamedStateDicts& states, const CheckpointRanks& ranks);

  // From here on all is written from a copy in `memory`, which outlives this.
  void copy_into(SnapshotMemory& memory);

  // Collective: what this rank writes goes to new files in `directory`, and is on the disk when it
  // returns. Errors: system, naming the file, once this rank has taken from the others what they
  // had to send.
  std::vector<ManifestFile> write(const std::filesystem::path& directory);

  const SavePlan& plan() const { return plan_; }

 private:
  bool is_written_here(const PlannedTensor& tensor) const;
  at::Tensor assemble(std::size_t index);
  std::vector<Work> send_pieces() const;
  std::vector<ManifestFile> write_files(const std::filesystem::path& directory);
  ManifestFile write_file(std::span<const std::size_t> tensors, const std::filesystem::path& path);
  void take_remaining_pieces();

  const SavePlan plan_;
  const CheckpointRanks ranks_;
  std::vector<at::Tensor>
      sources_;           // By index in the plan; undefined where this rank has no share.
  std::size_t next_ = 0;  // The first tensor of the plan whose pieces were not taken yet.
};

}  // namespace lockstep
