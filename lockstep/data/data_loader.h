// Loads batches on threads, in the order of a DistributedSampler (docs/guide/data.md).
//
//   lockstep::DataLoader loader(train, sampler, world, {.batch_size = 64, .threads = 2});
//   sampler.set_epoch(epoch);  // Before the loop of each epoch.
//   for (auto& batch : loader) {
//     step(batch.data, batch.target);
//     loader.consume(batch);  // Counts for a checkpoint; batches filled ahead do not.
//   }
//
// Thread safety: none.
// Blocking: the constructor with a group. The loop waits for the next batch, and helps to fill it.
// Leaving a loop early and destruction wait for the rows that threads are filling.
// Errors: those of fill(), when the loop reaches the batch, with the first failed sample's name:
// "sample 17 (train/cat/7.jpg): ...". An Error of fill() keeps its Fault. std::system_error and
// std::bad_alloc become Fault::system, other exceptions Fault::corrupt.
// Lifetime: the dataset must outlive the loader. When the loop continues, the loader reuses the
// batch's memory unless the program holds its tensors or views of them. Raw pointers are valid
// until then.

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
struct DataLoaderOptions {
  std::size_t batch_size = 1;

  // Threads that fill batches ahead, at a lower priority than the caller. 0: the loop fills each
  // batch; suffices for data in memory, not for decoding images.
  int threads = 1;

  // Limit in bytes for all batches ahead of the loop, each with its indices and 1 KB; at least one
  // batch. Larger values compensate for samples of uneven cost. Ignored without threads.
  std::size_t prefetch_bytes = std::size_t{64} << 20;

  // In a group of several ranks, CPU batches use registered memory if each rank's batches that
  // exist at once fit into this many bytes.
  std::size_t registered_bytes = std::size_t{256} << 20;

  // channels_last needs samples [channels, height, width], channels_last_3d one more dimension.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;

  std::uint64_t seed = 0;  // For the dataset's random numbers.

  // Omits a smaller last batch. Its samples count as consumed with the batch before it.
  bool drop_last = false;

  // For CUDA, batches are filled in pinned memory. The loop copies each batch asynchronously on the
  // device's current stream.
  at::Device device = at::kCPU;
};

struct Batch {
  at::Tensor data;                   // [rows, ...], with the dataset's data_spec().
  at::Tensor target;                 // [rows, ...].
  std::vector<std::size_t> indices;  // In the dataset, of each row.
  std::int64_t epoch = 0;
};

class LOCKSTEP_API DataLoader {
 public:
  class Iterator;

  // `sampler` is a handle; the program keeps another to set epochs. Errors: misuse, also if
  // drop_last leaves no batch. Unsupported for a device other than the CPU or available CUDA.
  // System if the host prevents new threads.
  DataLoader(const BatchDataset& dataset, DistributedSampler sampler,
             DataLoaderOptions options = {});

  // Collective, in the same order on all ranks of `group`. If a host cannot reserve registered
  // memory, rank 0 logs it, and all ranks use ordinary memory.
  // Errors: also mismatch on all ranks for a different dataset size or option that must be equal.
  DataLoader(const BatchDataset& dataset, DistributedSampler sampler, const ProcessGroup& group,
             DataLoaderOptions options = {});

  // Deleted: the dataset would dangle.
  DataLoader(const BatchDataset&&, DistributedSampler, DataLoaderOptions = {}) = delete;
  DataLoader(const BatchDataset&&, DistributedSampler, const ProcessGroup&,
             DataLoaderOptions = {}) = delete;

  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // This rank's batches in a whole epoch.
  std::size_t size() const;

  // Starts the sampler's next pass, through a whole epoch or the rest of a resumed one.
  // Errors: misuse during another loop.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Reports `batch` to the sampler as used. Errors: misuse, without an effect, unless it is the
  // oldest unconsumed batch of this pass with unchanged indices.
  void consume(const Batch& batch);

  // Bytes allocated for batches: at most prefetch_bytes plus one batch, or two batches if more.
  std::size_t bytes() const;

  // Registered memory, for memory_report(); may be empty.
  RegisteredMemory batch_memory() const;

 private:
  class Pass;

  std::unique_ptr<Pass> pass_;
};

// Destruction ends the pass.
class LOCKSTEP_API DataLoader::Iterator {
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
  friend class DataLoader;
  explicit Iterator(Pass& pass);

  Pass* pass_;
};

using Loader [[deprecated("renamed to DataLoader")]] = DataLoader;
using LoaderOptions [[deprecated("renamed to DataLoaderOptions")]] = DataLoaderOptions;

}  // namespace lockstep
