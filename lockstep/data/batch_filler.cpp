// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/batch_filler.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

using Nanoseconds = std::chrono::duration<double, std::nano>;

constexpr Nanoseconds chunk_time = std::chrono::microseconds(250);

// Gives the training thread the larger share of a common core.
constexpr int lower_priority = 10;

void lower_own_priority() {
  const auto thread = static_cast<id_t>(::gettid());
  ::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + lower_priority);
}

// at::set_num_threads() would also change other threads' default. LibTorch without OpenMP lacks
// OpenMP's function.
void use_one_intra_op_thread() {
  at::get_num_threads();  // The first call in a thread resets the number.
  const auto set = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(1);
}

void prepare_thread() {
  ::pthread_setname_np(::pthread_self(), "lockstep-loader");
  lower_own_priority();
  use_one_intra_op_thread();
}

// The caller's loop may have enabled gradients, autocast and inference mode.
class PlainOperations {
  c10::InferenceMode ordinary_{false};  // Enables gradients, so it must precede the next guard.
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

// For the rows that this thread fills; nullptr if none.
thread_local const std::atomic<bool>* cancelled_here = nullptr;

class Filling {
 public:
  explicit Filling(const std::atomic<bool>& cancelled)
      : before_(std::exchange(cancelled_here, &cancelled)) {}
  ~Filling() { cancelled_here = before_; }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

 private:
  const std::atomic<bool>* const before_;
};

struct RowFailure {
  std::size_t row;
  std::exception_ptr error;
};

std::string name_of(const BatchDataset& dataset, std::size_t index) {
  std::string text = "sample " + std::to_string(index);
  try {
    const std::string name = dataset.sample_name(index);
    if (!name.empty()) text += " (" + name + ")";
  } catch (...) {  // The message then has only the index.
  }
  return text;
}

// Without a leading file name that `samples` also has.
std::string text_beside(const std::string& samples, const Error& error) {
  const std::string text = bare_text(error);
  const auto end = text.find(": ");
  const bool repeats =
      end != text.npos && samples.find("(" + text.substr(0, end) + ")") != samples.npos;
  return repeats ? text.substr(end + 2) : text;
}

std::exception_ptr named(const std::exception_ptr& error, const std::string& samples) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      std::throw_with_nested(Error(known.fault(), samples + ": " + text_beside(samples, known)));
    } catch (const c10::Error& known) {
      std::throw_with_nested(
          Error(Fault::corrupt, samples + ": " + known.what_without_backtrace()));
    } catch (const std::bad_alloc& known) {
      std::throw_with_nested(Error(Fault::system, samples + ": " + known.what()));
    } catch (const std::system_error& known) {
      std::throw_with_nested(Error(Fault::system, samples + ": " + known.what()));
    } catch (const std::exception& known) {
      std::throw_with_nested(Error(Fault::corrupt, samples + ": " + known.what()));
    } catch (...) {
      std::throw_with_nested(Error(Fault::corrupt, samples + ": an exception of unknown type"));
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

struct BatchFiller::Shared {
  Shared(const BatchDataset& d, std::uint64_t s) : dataset(d), seed(s) {}

  void work();
  void fill_chunk(PendingBatch& batch, std::unique_lock<std::mutex>& lock);
  std::size_t rows_of_chunk(const PendingBatch& batch) const;
  void leave_out_rest(PendingBatch& batch, RowFailure failure);

  void fill(const PendingBatch& batch, std::size_t begin, std::size_t end) const;
  std::exception_ptr error_of(const PendingBatch& batch, std::size_t begin, std::size_t end) const;
  std::optional<RowFailure> failure_of(const PendingBatch& batch, std::size_t begin,
                                       std::size_t end) const;

  const BatchDataset& dataset;
  const std::uint64_t seed;
  bool has_threads = false;             // Set before start().
  std::atomic<bool> cancelled = false;  // True while cancel() waits.

  std::mutex mutex;  // Guards what follows, and the counts in batches.
  std::condition_variable given;
  std::condition_variable done;
  std::deque<PendingBatch*> batches;  // With unassigned rows, in order.
  int under_way = 0;                  // Chunks that are being filled.
  Nanoseconds row_time = chunk_time;  // The first chunk has one row, to measure the cost.
  bool stop = false;
};

void BatchFiller::Shared::fill(const PendingBatch& batch, std::size_t begin,
                               std::size_t end) const {
  const Filling filling(cancelled);
  const auto first = static_cast<std::int64_t>(begin);
  const auto count = static_cast<std::int64_t>(end - begin);
  dataset.fill({.indices = std::span(batch.indices).subspan(begin, end - begin),
                .data = batch.data.narrow(0, first, count),
                .target = batch.target.narrow(0, first, count),
                .seed = seed,
                .epoch = batch.epoch});
}

std::exception_ptr BatchFiller::Shared::error_of(const PendingBatch& batch, std::size_t begin,
                                                 std::size_t end) const {
  try {
    const PlainOperations plain;
    fill(batch, begin, end);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// After a failure, fills the rows singly to find the first that fails.
std::optional<RowFailure> BatchFiller::Shared::failure_of(const PendingBatch& batch,
                                                          std::size_t begin,
                                                          std::size_t end) const {
  const std::exception_ptr all = error_of(batch, begin, end);
  if (!all) return std::nullopt;
  const std::string first = name_of(dataset, batch.indices[begin]);
  if (end - begin == 1) return RowFailure{begin, named(all, first)};
  for (std::size_t row = begin; row < end; ++row)
    if (const auto error = error_of(batch, row, row + 1))
      return RowFailure{row, named(error, name_of(dataset, batch.indices[row]))};
  const std::string last = name_of(dataset, batch.indices[end - 1]);
  return RowFailure{begin, named(all, "samples from " + first + " to " + last + ", together")};
}

std::size_t BatchFiller::Shared::rows_of_chunk(const PendingBatch& batch) const {
  const std::size_t left = batch.indices.size() - batch.given;
  if (!has_threads) return left;
  const double rows = chunk_time / std::max(row_time, Nanoseconds(1));
  return std::clamp(static_cast<std::size_t>(rows), std::size_t{1}, left);
}

void BatchFiller::Shared::leave_out_rest(PendingBatch& batch, RowFailure failure) {
  if (batch.error && batch.failed_row < failure.row) return;
  batch.failed_row = failure.row;
  batch.error = std::move(failure.error);
  batch.done += batch.indices.size() - batch.given;
  batch.given = batch.indices.size();
  std::erase(batches, &batch);
}

void BatchFiller::Shared::fill_chunk(PendingBatch& batch, std::unique_lock<std::mutex>& lock) {
  const std::size_t begin = batch.given;
  const std::size_t end = begin + rows_of_chunk(batch);
  batch.given = end;
  if (end == batch.indices.size()) std::erase(batches, &batch);
  if (!batches.empty()) given.notify_one();
  ++under_way;

  lock.unlock();
  const auto started = std::chrono::steady_clock::now();
  std::optional<RowFailure> failure = failure_of(batch, begin, end);
  const Nanoseconds time = std::chrono::steady_clock::now() - started;
  lock.lock();

  --under_way;
  row_time = (row_time + time / static_cast<double>(end - begin)) / 2;
  batch.done += end - begin;
  if (failure) leave_out_rest(batch, std::move(*failure));
  if (batch.done == batch.indices.size() || under_way == 0) done.notify_one();
}

void BatchFiller::Shared::work() {
  prepare_thread();
  std::unique_lock lock(mutex);
  for (;;) {
    given.wait(lock, [&] { return stop || !batches.empty(); });
    if (stop) return;
    fill_chunk(*batches.front(), lock);
  }
}

BatchFiller::BatchFiller(const BatchDataset& dataset, std::uint64_t seed, int threads)
    : shared_(std::make_unique<Shared>(dataset, seed)), process_(this_process()) {
  shared_->has_threads = threads > 0;
  const BlockSignals block;  // Only the user's threads handle signals.
  try {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([shared = shared_.get()] { shared->work(); });
  } catch (const Error& error) {
    stop();
    std::string text = "DataLoaderOptions::threads is " + std::to_string(threads);
    text += ", and only " + std::to_string(threads_.size());
    throw Error(error.fault(), text + " could be started: " + bare_text(error));
  } catch (...) {
    stop();
    throw;
  }
}

BatchFiller::~BatchFiller() {
  if (!is_fork()) {
    stop();
    return;
  }
  for (Thread& thread : threads_) thread.forget();
  // A thread may have held the mutex at the fork.
  shared_.release();  // NOLINT(bugprone-unused-return-value)
}

bool BatchFiller::is_fork() const { return !threads_.empty() && process_ != this_process(); }

void BatchFiller::stop() noexcept {
  cancel();
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->given.notify_all();
  for (Thread& thread : threads_) thread.join();
}

void BatchFiller::require_threads() const {
  require(!is_fork(), [&] {
    return "DataLoader: process " + std::to_string(process_) +
           " made it; this fork()ed child has none of its threads and needs a DataLoader of its "
           "own";
  });
}

void BatchFiller::start(PendingBatch& batch) {
  require_threads();
  batch.given = batch.done = 0;
  batch.error = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->batches.push_back(&batch);
  }
  shared_->given.notify_one();
}

void BatchFiller::finish(PendingBatch& batch) {
  require_threads();
  std::unique_lock lock(shared_->mutex);
  const std::size_t rows = batch.indices.size();
  while (batch.given < rows) shared_->fill_chunk(batch, lock);
  shared_->done.wait(lock, [&] { return batch.done == rows; });
  if (batch.error) std::rethrow_exception(batch.error);
}

void BatchFiller::cancel() noexcept {
  if (is_fork()) return;
  shared_->cancelled = true;
  std::unique_lock lock(shared_->mutex);
  shared_->batches.clear();
  shared_->done.wait(lock, [&] { return shared_->under_way == 0; });
  shared_->cancelled = false;
}

bool fill_is_cancelled() { return cancelled_here != nullptr && *cancelled_here; }

}  // namespace lockstep
