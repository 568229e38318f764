// Loads batches of a dataset on threads, in the order of a DistributedSampler (docs/guide/data.md).
//
//   lockstep::Loader loader(train, sampler, world, {.batch_size = 64, .threads = 2});
//   sampler.set_epoch(epoch);  // Before the loop of each epoch.
//   for (auto& batch : loader) {
//     step(batch.data, batch.target);
//     loader.consume(batch);  // Counts for a checkpoint; batches filled ahead do not.
//   }
//
// Thread safety: none. Several threads call the dataset's fill() at once.
// Blocking: the loop waits for the next batch, and helps to fill it. Leaving a loop early and
// destroying the loader wait for the rows that threads are filling.
// Errors: those of fill(), thrown when the loop reaches the batch, with the first failed sample's
// name: "sample 17 (train/cat/7.jpg): ...". The Fault is that of fill()'s Error; for other
// exceptions, system for std::system_error and std::bad_alloc, otherwise corrupt.
// Lifetime: the dataset must outlive the loader. The loader reuses a batch's memory only if the
// program holds neither its tensors nor views of them. Raw pointers are valid until the loop
// continues.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/data/batch_dataset.h"
#include "lockstep/data/distributed_sampler.h"

namespace lockstep {

class ProcessGroup;

// batch_size, drop_last, registered_bytes and seed must be equal on all ranks.
struct LoaderOptions {
  std::size_t batch_size = 1;

  // Threads that fill batches ahead, at a lower priority than the caller. 0: the loop fills each
  // batch, which suffices for data in memory but not for decoding images.
  int threads = 1;

  // Bytes of the batches ahead of the loop, plus 1 KB per batch; at least one batch. Larger values
  // compensate for samples of uneven cost. Ignored without threads.
  std::size_t prefetch_bytes = std::size_t{64} << 20;

  // With a group, the constructor reserves registered memory if all batches of a rank take at most
  // this many bytes. Otherwise batches use ordinary memory. 0 disables registered memory.
  std::size_t registered_bytes = std::size_t{256} << 20;

  // channels_last for samples [channels, height, width], channels_last_3d with one more dimension.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;

  std::uint64_t seed = 0;  // For the dataset's random numbers.

  // Omits an epoch's last batch if it is smaller. Its samples count as consumed with the batch
  // before it.
  bool drop_last = false;

  // For a CUDA device, batches are filled in pinned memory. The loop copies each batch
  // asynchronously on the device's current stream.
  at::Device device = at::kCPU;
};

struct Batch {
  at::Tensor data;                   // [rows, ...], with the dataset's data_spec().
  at::Tensor target;                 // [rows, ...].
  std::vector<std::size_t> indices;  // The dataset's index of each row.
  std::int64_t epoch = 0;
};

class LOCKSTEP_API Loader {
 public:
  class Iterator;

  // `sampler` is a handle; the program keeps another to set epochs. Errors: misuse, also if
  // drop_last leaves no batch.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, LoaderOptions options = {});

  // Collective, in the same order on all ranks of `group`. If a host cannot reserve registered
  // memory, rank 0 logs it, and all ranks use ordinary memory.
  // Errors: mismatch on all ranks if the dataset's size or an option that must be equal differs.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, const ProcessGroup& group,
         LoaderOptions options = {});

  // Deleted: the dataset would dangle.
  Loader(const BatchDataset&&, DistributedSampler, LoaderOptions = {}) = delete;
  Loader(const BatchDataset&&, DistributedSampler, const ProcessGroup&,
         LoaderOptions = {}) = delete;

  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Number of this rank's batches in one whole epoch.
  std::size_t size() const;

  // Starts a pass through the remaining samples of the sampler's epoch, and waits for the first
  // batch. Errors: misuse while another loop over this loader runs.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Reports to the sampler that the program has used `batch`. Errors: misuse, without an effect,
  // unless it is the oldest unconsumed batch of this pass with unchanged indices.
  void consume(const Batch& batch);

  // Bytes allocated for batches: at most prefetch_bytes plus one batch, or two batches if that is
  // more.
  std::size_t bytes() const;

  // The registered memory of the batches, for memory_report(); may be empty.
  RegisteredMemory batch_memory() const;

 private:
  class Pass;

  std::unique_ptr<Pass> pass_;
};

// Its destruction ends the pass.
class LOCKSTEP_API Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Iterator(Iterator&& other) noexcept : pass_(std::exchange(other.pass_, nullptr)) {}
  Iterator& operator=(Iterator&& other) noexcept;
  ~Iterator();

  Batch& operator*() const;
  Batch* operator->() const { return &**this; }
  Iterator& operator++();
  void operator++(int) { ++*this; }

  friend LOCKSTEP_API bool operator==(const Iterator& iterator, std::default_sentinel_t);

 private:
  friend class Loader;
  explicit Iterator(Pass& pass);

  Pass* pass_;
};

}  // namespace lockstep
