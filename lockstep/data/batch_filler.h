// Fills batches of a dataset on threads, in the order in which the batches were given.
//
// Threads take pieces: some rows of the earliest batch that has rows left. All threads thus work on
// the batch that is needed first, which gives the shortest wait for it. A thread that finds no rows
// left in it goes on with the next batch, so none waits for the slowest piece. Pieces take about
// 250 us, by the measured cost of a row: a decoder's pieces are single images, and a batch that is
// copied from memory is one piece.
//
// The calling thread fills pieces, too, while it waits. Without threads it fills whole batches.

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

// A batch whose rows are being filled.
struct PendingBatch {
  at::Tensor data;
  at::Tensor target;
  std::vector<std::size_t> indices;  // One for each row.
  std::int64_t epoch = 0;

  // The rest is BatchFiller's.
  std::size_t given = 0;  // Rows that threads have taken.
  std::size_t done = 0;   // Rows that are filled, or left out after a failure.
  std::size_t failed_row = 0;
  std::exception_ptr error = {};  // Of failed_row, the first one that failed.
};

// Thread safety: none; one thread calls.
class BatchFiller {
 public:
  // `dataset` outlives the filler. Errors: system, naming LoaderOptions::threads, when the host
  // allows this user no more threads.
  BatchFiller(const BatchDataset& dataset, std::uint64_t seed, int threads);

  // Blocking: as cancel(). In a fork()ed child it leaves behind what the threads used.
  ~BatchFiller();
  BatchFiller(const BatchFiller&) = delete;
  BatchFiller& operator=(const BatchFiller&) = delete;

  // `batch` stays in place until finish() or cancel() returns. Errors: misuse in a fork()ed child,
  // which has none of the threads.
  void start(PendingBatch& batch);

  // Blocking: until all rows are filled. Batches finish in the order of their start().
  // Errors: the first row's whose fill() threw, with its index and name. The Fault is that of an
  // Error; system for std::bad_alloc and std::system_error; otherwise corrupt. The exception that
  // was thrown is nested in it.
  void finish(PendingBatch& batch);

  // Forgets all batches. Blocking: until the pieces under way are filled.
  void cancel() noexcept;

 private:
  struct Shared;

  bool is_fork() const;  // Of the process that has the threads.
  void require_threads() const;
  void stop() noexcept;

  std::unique_ptr<Shared> shared_;
  std::vector<Thread> threads_;
  const pid_t process_;
};

// Whether the calling thread fills rows that cancel() waits for, and whose result nobody needs:
// fill() may throw any Error instead of waiting.
bool fill_is_cancelled();

}  // namespace lockstep::data
