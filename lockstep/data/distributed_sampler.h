// A sampler that divides the indices of a dataset among ranks, in the order of Python's
// torch.utils.data.DistributedSampler. The same size, ranks, seed and epoch give the same lists.
//
// The sampler is a handle whose copies share one state. torch::data::make_data_loader() takes one
// copy. The caller keeps another to set the next epoch and to report consumed samples:
//   for (auto epoch = sampler.epoch(); epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) {
//       ...
//       sampler.consume(batch.data.size(0));
//     }
//   }
// A state saved after the last batch of an epoch resumes at the end of that epoch: with an empty
// pass, followed by the program's work after an epoch. To save after that work, call
// set_epoch(epoch + 1) first.
//
// The position counts the samples of all ranks together, so an interrupted epoch can resume on any
// number of ranks. Each sample that was not consumed is then dealt once.
//
// Thread safety: none. A data loader draws on the thread that iterates it, not on its workers.
// Blocking: only the constructor with a group, which is collective; nothing else communicates.
// Cost: one int64 per sample of the whole dataset while shuffling, nothing otherwise.
// Errors: misuse.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// An order for data that is read in large pieces, such as shards: a shuffle that needs a few pieces
// at a time. Samples are numbered group by group. In each epoch the groups are shuffled and cut
// into blocks; the samples of each block are shuffled. The order is a function of seed and epoch
// only, and dealt as any other: all ranks read the same block at the same time.
struct GroupedOrder {
  std::vector<std::size_t> group_sizes;  // Samples of each group.

  // More groups mix better; each rank reads from that many at a time, and a cache has to hold twice
  // as many.
  std::size_t groups_per_block = 8;

  // A number that differs for other samples. A sampler's state loads only where it is the same, and
  // ranks are compared. 0: unknown.
  std::uint64_t fingerprint = 0;

  // Called at the begin of each pass with the groups that it reads, in this order. May be empty.
  std::function<void(const std::vector<std::size_t>& groups)> at_pass = {};
};

// All fields must be equal on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     // A new order each epoch; otherwise the order is 0, 1, 2, ...
  std::uint64_t seed = 0;  // Seed of the order; the epoch is added to it.
  bool drop_last = false;  // Drops the end of the order that does not fill all ranks, instead of
                           // repeating its beginning.
  bool pad = true;         // false: each index is dealt exactly once, as an exact evaluation needs.
                           // Ranks may then differ by one sample, and so by one batch, which breaks
                           // a training loop.

  // Shuffles in blocks of groups, such as shards. Otherwise all samples are shuffled together.
  std::optional<GroupedOrder> order = {};
};

class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is the size of the whole dataset.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     DistributedSamplerOptions options = {});

  // Collective: all ranks of `group` make their samplers in the same order. Errors: mismatch on all
  // ranks if `size` or `options` differ. The message names two ranks and the difference.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // Number of samples that this rank has in one whole epoch.
  std::size_t size() const;

  // Sets the epoch of the next pass, which begins at the next reset(). The pass leaves out the
  // first `offset` samples, counted in the epoch's order over all ranks. The default offset is 0.
  // After load(), the default for the loaded epoch is the loaded offset, until the next reset().
  void set_epoch(std::int64_t epoch, std::optional<std::size_t> offset = std::nullopt);

  // The epoch that set_epoch() or load() set last.
  std::int64_t epoch() const;

  // Reports that the program has taken this many more samples of this rank. The sampler cannot
  // know: a data loader draws up to two batches ahead for each worker. Returns the indices of these
  // samples in the dataset.
  // Errors: misuse for more samples than were drawn in this pass.
  std::vector<std::size_t> consume(std::size_t samples);

  // Reports these samples. Errors: misuse, which counts nothing, unless they are the oldest ones of
  // this pass that were not consumed, in their order.
  void consume(const std::vector<std::size_t>& indices);

  // Samples of the epoch that all ranks have consumed, if each consumed as many as this one. Equals
  // the dataset's size once this rank has consumed all its samples. With pad = false, a rank with
  // fewer batches than others stays at the end of its last batch.
  std::size_t offset() const;

  // Number of samples that this rank has in the epoch from offset() on.
  std::size_t remaining() const;

  // Starts a pass; a data loader's begin() calls it. Without set_epoch() since the last pass, it
  // repeats the last epoch from its start. `new_size` replaces the size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // Returns the next `batch_size` indices of this rank; fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Contains epoch() and offset(), and the size of the dataset and the options that they depend on.
  // Errors: misuse if samples were drawn and none was ever consumed.
  StateDict state_dict() const;

  // Loads on any number of ranks. Errors: misuse for another size or other options; names them.
  void load_state_dict(const StateDict& state);

  // Save and load only epoch() and offset(), for torch::save() and torch::load(). Errors: as
  // state_dict(); corrupt if the archive holds no sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  class Part;
  friend LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

  std::shared_ptr<State> state_;
};

// The sampler as a part of a checkpoint. Holds its own handle.
LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

}  // namespace lockstep
