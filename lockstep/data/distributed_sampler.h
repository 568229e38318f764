// Deals the indices of a dataset out to ranks, in the order of Python's
// torch.utils.data.DistributedSampler: the same size, ranks, seed and epoch give the same lists.
//
// A copyable handle whose copies share one state: torch::data::make_data_loader() takes one copy,
// the caller keeps another and says through it which epoch comes next.
//
// Thread safety: none. A data loader draws on the thread that iterates it, not on its workers.
// Cost: one int64 per sample of the whole dataset while shuffling, nothing without.
// Errors: misuse.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/api.h"

namespace lockstep {

class ProcessGroup;

// All of it must be equal on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     // A new order each epoch; without, the order is 0, 1, 2, ...
  std::uint64_t seed = 0;  // Of the order; the epoch is added to it.
  bool drop_last = false;  // Leaves out the end of the order that does not fill all ranks, instead
                           // of dealing its beginning out once more.
  bool pad = true;         // false: each index is dealt exactly once, which an exact evaluation
                           // needs. Ranks may then differ by one sample, and so by one batch,
                           // which a training loop does not survive.
};

class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is that of the whole dataset.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     DistributedSamplerOptions options = {});
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // The samples that this rank has in one epoch.
  std::size_t size() const;

  // The next pass, from the next reset() on, goes through `epoch`. It starts after the first
  // `position` samples of this rank, so that an interrupted epoch can be taken up again.
  void set_epoch(std::int64_t epoch, std::size_t position = 0);

  // What set_epoch() said last; position() then counts the samples that next() hands out. A data
  // loader with workers draws up to two batches for each of them ahead of the loop.
  std::int64_t epoch() const;
  std::size_t position() const;

  // Starts a pass; a data loader's begin() does so. Without set_epoch() in between it repeats the
  // last one. `new_size` replaces the size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // The next `batch_size` indices of this rank, fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // epoch() and position(). load() is a set_epoch(). Errors: corrupt when the archive holds no
  // sampler; misuse when it was saved among another number of replicas, whose positions differ.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
