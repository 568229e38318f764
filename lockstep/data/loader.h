// Loads batches of a dataset on threads, in the order of a DistributedSampler.
//
//   lockstep::DistributedSampler sampler(train.size(), world);
//   lockstep::Loader loader(train, sampler, world, {.batch_size = 64, .threads = 2});
//   for (auto epoch = sampler.epoch(); epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : loader) {
//       step(batch.data, batch.target);
//       loader.consume(batch);  // Counts for a checkpoint; batches filled ahead do not.
//     }
//   }
//
// The guide, docs/guide/data.md, lists the guarantees: order, random numbers, leaving a loop early.
//
// Thread safety: none. Several threads call the dataset's fill() at once.
// Blocking: the loop waits for the next batch, and helps to fill it. Leaving a loop early and
// destroying the loader wait for the rows that threads are filling.
// Errors: those of fill(), thrown when the loop reaches the failed batch. The message names the
// first failed sample: "sample 17 (train/cat/7.jpg): ...". The Fault is the dataset's. Other
// exceptions are nested in an Error: system for std::system_error and std::bad_alloc, otherwise
// corrupt.
// Lifetime: the dataset must outlive the loader. The loader reuses a batch's memory in a later
// batch only if the program holds neither its tensors nor views of them. Raw pointers into a batch
// are valid until the loop continues. Batches that replace those which the program keeps are in
// ordinary memory, even with registered_bytes.

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

  // Number of threads that fill batches ahead; they run at a lower priority than the caller. With
  // 0, the loop fills each batch when it needs it. This suffices for data in memory, but delays
  // training by the time of decoding images.
  int threads = 1;

  // Bytes of the batches ahead of the batch in the loop, plus 1 KB per batch. At least one batch is
  // filled ahead. Larger values compensate for samples of uneven cost. Ignored without threads.
  std::size_t prefetch_bytes = std::size_t{64} << 20;

  // With a group, batches lie in registered memory, reserved by the constructor, if all batches of
  // a rank take at most this many bytes. Otherwise they lie in ordinary memory, allocated on
  // demand. 0 disables registered memory. The default suffices for the default prefetch_bytes; each
  // rank reserves its own memory.
  std::size_t registered_bytes = std::size_t{256} << 20;

  // Layout of the batch's data: channels_last for samples [channels, height, width],
  // channels_last_3d for samples with one more dimension.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;

  std::uint64_t seed = 0;  // Seed of the dataset's random numbers.

  // Omits the last batch of an epoch if it is smaller than the others. Its samples count as
  // consumed with the batch before.
  bool drop_last = false;

  // For a CUDA device, batches are filled in pinned memory. When the loop reaches a batch, it is
  // copied asynchronously on the device's current stream.
  at::Device device = at::kCPU;
};

struct Batch {
  at::Tensor data;                   // [rows, ...], with the dataset's data_spec().
  at::Tensor target;                 // [rows, ...], with its target_spec().
  std::vector<std::size_t> indices;  // Index in the dataset of each row.
  std::int64_t epoch = 0;
};

class LOCKSTEP_API Loader {
 public:
  class Iterator;

  // `sampler` is a handle; the program keeps another one to set epochs. Logs a warning on a rank
  // without samples.
  // Errors: misuse, also if drop_last leaves no batch.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, LoaderOptions options = {});

  // Collective: all ranks of `group` create their loaders in the same order. If a host cannot
  // reserve registered memory, rank 0 logs it, and all ranks use ordinary memory.
  // Errors: mismatch on all ranks if the dataset's size, batch_size, drop_last, registered_bytes or
  // seed differ.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, const ProcessGroup& group,
         LoaderOptions options = {});

  // Deleted: the dataset would dangle.
  Loader(const BatchDataset&&, DistributedSampler, LoaderOptions = {}) = delete;
  Loader(const BatchDataset&&, DistributedSampler, const ProcessGroup&,
         LoaderOptions = {}) = delete;

  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Number of batches of this rank in one whole epoch.
  std::size_t size() const;

  // Starts a pass through the remaining samples of the sampler's epoch, and waits for the first
  // batch. Errors: misuse while another loop over this loader runs.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Reports to the sampler that the program has used `batch`. Errors: misuse, without an effect,
  // unless it is the oldest unconsumed batch of this pass with unchanged indices.
  void consume(const Batch& batch);

  // Bytes that are now allocated for batches: at most prefetch_bytes plus one batch, or two batches
  // if that is more.
  std::size_t bytes() const;

  // The registered memory of the batches, for memory_report(). Empty if there is none.
  RegisteredMemory batch_memory() const;

 private:
  class Pass;

  std::unique_ptr<Pass> pass_;
};

// An input iterator. Its destruction ends the pass.
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
