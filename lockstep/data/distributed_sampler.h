// Deals the indices of a dataset out to ranks, in the order of Python's
// torch.utils.data.DistributedSampler: the same size, ranks, seed and epoch give the same lists.
//
// A copyable handle whose copies share one state: torch::data::make_data_loader() takes one copy,
// the caller keeps another and says through it which epoch comes next, and what it has consumed:
//   for (auto epoch = sampler.epoch(); epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) {
//       ...
//       sampler.consume(batch.data.size(0));
//     }
//   }
// What is saved after the last batch of an epoch goes on with the end of that epoch: an empty pass,
// and what the program does after one. Who saves after that, says set_epoch(epoch + 1) before.
//
// Where it is counts the samples of all ranks together, so that an interrupted epoch goes on among
// any number of ranks: each sample that was not consumed is dealt once.
//
// Thread safety: none. A data loader draws on the thread that iterates it, not on its workers.
// Blocking: the constructor with a group, which is collective; nothing else communicates.
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

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

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

  // Collective: all ranks of `group` make their samplers in the same order. Errors: mismatch on all
  // ranks, naming two of them and what differs, when `size` and `options` are not the same on all.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // The samples that this rank has in one whole epoch.
  std::size_t size() const;

  // The next pass, from the next reset() on, goes through `epoch` after its first `offset` samples,
  // counted in the order of the epoch, all ranks together. By default that is all of it; but of the
  // epoch that was loaded, until the next reset(), what was not consumed.
  void set_epoch(std::int64_t epoch, std::optional<std::size_t> offset = std::nullopt);

  // What set_epoch() or load() said last.
  std::int64_t epoch() const;

  // The program has taken so many more samples of this rank, which is for it to say: a data loader
  // with workers draws up to two batches for each of them ahead. Returns their indices in the
  // dataset.
  // Errors: misuse for more than were drawn in this pass.
  std::vector<std::size_t> consume(std::size_t samples);

  // Samples of the epoch that all ranks have consumed, if each did as this one: the dataset's size
  // when all were that it deals. With pad = false a rank that has fewer batches than others stays
  // where its last one ended.
  std::size_t offset() const;

  // The samples that this rank has of the epoch from offset() on.
  std::size_t remaining() const;

  // Starts a pass; a data loader's begin() does so. Without set_epoch() in between it repeats the
  // last epoch from its start. `new_size` replaces the size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // The next `batch_size` indices of this rank, fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // epoch() and offset(), and what they are counted in: the size of the dataset and the options.
  // Errors: misuse when samples were drawn and none ever consumed.
  StateDict state_dict() const;

  // On any number of ranks. Errors: misuse, naming them, for another size or other options.
  void load_state_dict(const StateDict& state);

  // epoch() and offset() alone, for torch::save() and torch::load(). Errors: as state_dict();
  // corrupt when the archive holds no sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  class Part;
  friend LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

  std::shared_ptr<State> state_;
};

// Saves and loads it as a part of a checkpoint. Holds a handle of its own.
LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

}  // namespace lockstep
