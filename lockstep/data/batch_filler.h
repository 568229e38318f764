// Fills batches of a dataset on threads, in the order of start().
//
// Each thread takes a chunk of rows, of about 250 us by the measured cost of a row, from the
// earliest batch with unassigned rows. finish() also fills chunks of its batch before it waits;
// without threads it fills the whole batch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/thread.h"
#include "lockstep/data/batch_dataset.h"

namespace lockstep {

struct PendingBatch {
  at::Tensor data;
  at::Tensor target;
  std::vector<std::size_t> indices;  // One per row.
  std::int64_t epoch = 0;

  // For BatchFiller only.
  std::size_t given = 0;  // Rows assigned to threads.
  std::size_t done = 0;   // Rows filled, or skipped after a failure.
  std::size_t failed_row = 0;
  std::exception_ptr error = {};  // Exception of the first failed row.
};

// Thread safety: none.
class LOCKSTEP_API BatchFiller {
 public:
  // `dataset` must outlive the filler.
  // Errors: system, naming DataLoaderOptions::threads, if the host prevents new threads.
  BatchFiller(const BatchDataset& dataset, std::uint64_t seed, int threads);

  // Blocking: as cancel(). In a forked child, leaks the threads' state.
  ~BatchFiller();
  BatchFiller(const BatchFiller&) = delete;
  BatchFiller& operator=(const BatchFiller&) = delete;

  // `batch` must not move until finish() or cancel(). Errors: misuse in a fork if `threads` > 0.
  void start(PendingBatch& batch);

  // Blocking: until all rows are filled. Call it in the order of start().
  // Errors: start()'s; those of DataLoader's loop, with the first failed row's exception nested.
  void finish(PendingBatch& batch);

  // Drops all batches. Blocking: until the threads have filled their current chunks.
  void cancel() noexcept;

 private:
  struct Shared;

  bool is_fork() const;  // A fork lacks the threads.
  void require_threads() const;
  void stop() noexcept;

  std::unique_ptr<Shared> shared_;
  std::vector<Thread> threads_;
  const pid_t process_;
};

// Whether cancel() waits for the rows that this thread fills. fill() may then throw any Error.
LOCKSTEP_API bool fill_is_cancelled();

}  // namespace lockstep
