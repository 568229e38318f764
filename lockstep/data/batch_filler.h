// Fills batches of a dataset on threads, in the order in which the batches were started.
//
// Each thread takes a chunk of rows from the earliest batch that has unassigned rows. A chunk takes
// about 250 us, by the measured cost of a row. While it waits, the calling thread also fills
// chunks; without threads it fills whole batches.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/data/batch_dataset.h"

namespace lockstep::data {

struct PendingBatch {
  at::Tensor data;
  at::Tensor target;
  std::vector<std::size_t> indices;  // One per row.
  std::int64_t epoch = 0;

  // Only BatchFiller uses the members below.
  std::size_t given = 0;  // Rows assigned to threads.
  std::size_t done = 0;   // Rows that are filled, or skipped after a failure.
  std::size_t failed_row = 0;
  std::exception_ptr error = {};  // Exception of failed_row, the first failed row.
};

// Thread safety: none.
class BatchFiller {
 public:
  // `dataset` must outlive the filler.
  // Errors: system, naming LoaderOptions::threads, if the host's limits prevent new threads.
  BatchFiller(const BatchDataset& dataset, std::uint64_t seed, int threads);

  // Blocking: as cancel(). In a forked child, leaks the state of the threads.
  ~BatchFiller();
  BatchFiller(const BatchFiller&) = delete;
  BatchFiller& operator=(const BatchFiller&) = delete;

  // `batch` must not move until finish() or cancel() returns. Errors: misuse in a forked child,
  // which lacks the threads.
  void start(PendingBatch& batch);

  // Blocking: until all rows are filled. Call it in the order of start().
  // Errors: the exception of the first failed row, nested in an Error with the sample's index and
  // name. Its Fault is a nested Error's, system for std::bad_alloc and std::system_error, otherwise
  // corrupt.
  void finish(PendingBatch& batch);

  // Drops all batches. Blocking: until the threads have filled their current chunks.
  void cancel() noexcept;

 private:
  struct Shared;

  bool is_fork() const;  // Whether this process is a fork, which lacks the threads.
  void require_threads() const;
  void stop() noexcept;

  std::unique_ptr<Shared> shared_;
  std::vector<Thread> threads_;
  const pid_t process_;
};

// Whether cancel() waits for the rows that the calling thread fills. Their result is not needed:
// fill() may throw any Error.
bool fill_is_cancelled();

}  // namespace lockstep::data
