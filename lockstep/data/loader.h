// Batches of a dataset, filled ahead by threads, in the order of a DistributedSampler.
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
// Batches come in the sampler's order, with the same values for any number of threads. A dataset's
// random numbers depend on `seed`, epoch and sample only. The threads run on the cores of the
// thread that makes the loader, at a lower priority than it, each with one intra-op thread. While
// the loop waits for a batch, its own thread helps to fill it.
//
// A loop may be left at any time, by `break` or by an exception; the next loop begins anew.
//
// Thread safety: none. The dataset's fill() is called from several threads at once.
// Blocking: the loop, for the next batch. Leaving a loop early and destroying the loader wait for
// the rows that threads are filling.
// Errors: as those of the dataset's fill(), when it is the turn of the failed batch. The message
// names the first sample that failed: "sample 17 (train/cat/7.jpg): ...". The Fault is the
// dataset's; another exception than Error is nested in one, which is system for std::system_error
// and std::bad_alloc, otherwise corrupt. The loop ends with the Error.
// Lifetime: the dataset outlives the loader. A batch's tensors are valid as long as the program
// holds them: the loader reuses their memory once the loop has gone on to the next batch and the
// program holds neither them nor views of them, and allocates new memory otherwise. Raw pointers
// into a batch are valid until the loop goes on.
//
// Memory: a loader with a group of several ranks has its batches in memory that is registered with
// the group, unless they take more than registered_bytes. Collectives of that group on a batch,
// such as broadcast(batch.data, world), then copy nothing. All of it is reserved when the loader is
// made. New memory in place of batches that the program keeps is ordinary. If one host has too
// little memory to reserve, the batches of all ranks lie in ordinary memory. Messages, and
// collectives of other groups, pass through staging buffers as always. Without a group, batches lie
// in ordinary memory; for a CUDA device, in pinned memory.

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

  // Threads that fill batches ahead. With 0, the loop fills each batch when it needs it: enough for
  // data in memory, while decoding images then takes its whole time from training.
  int threads = 1;

  // Bytes of the batches that are filled or being filled ahead, besides the batch in the loop, with
  // 1 KB for each batch. At least one batch is. Larger values even out samples of uneven cost;
  // ignored without threads.
  std::size_t prefetch_bytes = std::size_t{64} << 20;

  // With a group, batches lie in registered memory if all batches of a rank, those ahead and the
  // one in the loop, take at most this many bytes; otherwise in ordinary memory, which is allocated
  // when it is needed. With 0 they never lie in registered memory. The default has room for the
  // usual prefetch_bytes; every rank of a host reserves its own.
  std::size_t registered_bytes = std::size_t{256} << 20;

  // Layout of the batch's data: channels_last for [channels, height, width], channels_last_3d for
  // samples of one more dimension.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;

  std::uint64_t seed = 0;  // Of the dataset's random numbers.

  // Leaves out the last batch of an epoch if it is smaller than others. Its samples count as
  // consumed with the batch before it.
  bool drop_last = false;

  // For a CUDA device, batches are filled in pinned memory and copied when it is their turn, on the
  // device's current stream; the copy is asynchronous.
  at::Device device = at::kCPU;
};

struct Batch {
  at::Tensor data;                   // [rows, ...], with the dataset's data_spec().
  at::Tensor target;                 // [rows, ...], with its target_spec().
  std::vector<std::size_t> indices;  // In the dataset; one for each row.
  std::int64_t epoch = 0;
};

class LOCKSTEP_API Loader {
 public:
  class Iterator;

  // `sampler` is a handle: the program sets epochs with its own. Errors: misuse, also if drop_last
  // leaves no batch. A rank without samples is logged.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, LoaderOptions options = {});

  // Collective: all ranks of `group` make their loaders in the same order. Errors: mismatch on all
  // ranks if the dataset's size, batch_size, drop_last, registered_bytes or seed differ. Where
  // registered memory cannot be reserved, rank 0 logs it, and batches lie in ordinary memory.
  Loader(const BatchDataset& dataset, DistributedSampler sampler, const ProcessGroup& group,
         LoaderOptions options = {});

  // The dataset would be gone.
  Loader(const BatchDataset&&, DistributedSampler, LoaderOptions = {}) = delete;
  Loader(const BatchDataset&&, DistributedSampler, const ProcessGroup&,
         LoaderOptions = {}) = delete;

  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Number of batches in one whole epoch on this rank.
  std::size_t size() const;

  // Starts a pass through the samples that the sampler has left in its epoch, and waits for the
  // first batch. Errors: misuse while another loop over this loader runs.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  // Reports to the sampler that the program has used `batch`. Errors: misuse, which counts nothing,
  // unless it is the oldest batch of this pass that was not consumed, with its indices.
  void consume(const Batch& batch);

  // Bytes of the batches that the loader has memory for now: at most prefetch_bytes and one batch,
  // or two batches.
  std::size_t bytes() const;

  // The registered memory in which batches lie, for memory_report(). Empty without such memory.
  RegisteredMemory batch_memory() const;

 private:
  class Pass;

  std::unique_ptr<Pass> pass_;
};

// An input iterator. Its end ends the pass.
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
