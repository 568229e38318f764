// One rank's share of a checkpoint: tensors that it writes, and parts that it sends to other
// writers. Thread safety: none; write() may run on another thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/output_file.h"
#include "lockstep/base/thread.h"
#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/save_plan.h"
#include "lockstep/comm/work.h"

namespace lockstep::checkpoint {

// Memory for a copy of the state, kept between checkpoints: page faults cost more than the copy.
// Errors: system for too little memory.
class SnapshotMemory {
 public:
  SnapshotMemory() = default;
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Allocates the pages of `size` bytes on a background thread, and overwrites each new page's
  // first byte. Invalidates the pointers of reserve(). Logs a warning if the host allows no further
  // thread.
  void prepare(std::size_t size);

  // Returns at least `size` uninitialised bytes, aligned to a page. Stops prepare(), and keeps its
  // pages. Invalidates the pointers of earlier calls.
  std::byte* reserve(std::size_t size);

 private:
  void grow(std::size_t size);
  void touch_pages();
  void stop_preparing();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t touched_ = 0;  // Bytes whose pages exist.
  Thread preparing_;
  std::atomic<bool> must_stop_ = false;
};

class CheckpointWriter {
 public:
  // Uses the memory of `states`, this rank's, until copy_into() or write() has read it.
  CheckpointWriter(SavePlan plan, const NamedStateDicts& states, const CheckpointRanks& ranks);

  std::size_t copy_size() const;

  // Copies the state, for write(), to `memory`, which must outlive this object.
  void copy_into(SnapshotMemory& memory);

  // Collective: writes and syncs this rank's files. Errors: system, naming the file, after
  // receiving all data that other ranks send; ProcessGroup's.
  std::vector<ManifestFile> write(const std::filesystem::path& directory);

  const SavePlan& plan() const { return plan_; }

 private:
  bool is_written_here(const PlannedTensor& tensor) const;
  at::Tensor assemble(std::size_t index);
  std::vector<Work> send_shares() const;
  std::vector<ManifestFile> write_files(const std::filesystem::path& directory);
  ManifestFile write_file(std::span<const std::size_t> tensors, const std::filesystem::path& path);
  void take_remaining_shares();

  const SavePlan plan_;
  const CheckpointRanks ranks_;
  std::vector<at::Tensor> sources_;  // By index in the plan; undefined if this rank has no share.
  std::size_t next_ = 0;             // The plan's first tensor whose shares were not received.
};

}  // namespace lockstep::checkpoint
