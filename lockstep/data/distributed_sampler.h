// Distributes the indices of a dataset to ranks in the order of Python's
// torch.utils.data.DistributedSampler: equal size, ranks, seed and epoch give equal lists.
//
// Copies share one state: torch::data::make_data_loader() takes one, and the caller uses another.
//
//   for (auto epoch = sampler.epoch(); epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) sampler.consume(batch.data.size(0));  // After the training step.
//   }
//
// A state saved after the last batch of an epoch resumes with an empty pass, and then with the
// program's work after the epoch. To save after that work, call set_epoch(epoch + 1) first.
//
// The position counts the samples of all ranks: an epoch can resume on any number of ranks, and
// each unconsumed sample is then distributed once.
//
// Thread safety: none.
// Blocking: only the constructor with a group, which is collective.
// Cost: while shuffling, one int64 per sample of the whole dataset.
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

// An order for data that is read in large groups, such as shards. Samples are numbered group by
// group. Each epoch shuffles the groups, cuts them into blocks, and shuffles the samples of each
// block. All ranks read the same block at the same time.
struct GroupedOrder {
  std::vector<std::size_t> group_sizes;  // In samples.

  // More groups mix better. Each rank reads this many at a time; a cache must hold twice as many.
  std::size_t groups_per_block = 8;

  // Identifies the samples on all ranks and in loaded states. 0: unknown.
  std::uint64_t fingerprint = 0;

  // Called at the start of each pass with its groups in reading order.
  std::function<void(const std::vector<std::size_t>& groups)> at_pass = {};
};

// All fields must be equal on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     // A new order in each epoch; otherwise 0, 1, 2, ...
  std::uint64_t seed = 0;  // The epoch is added to it.
  bool drop_last = false;  // Drops the end that does not fill all ranks; otherwise repeats the
                           // beginning.
  bool pad = true;         // false: each index occurs exactly once, for exact evaluation. Ranks may
                           // then differ by one batch, which blocks a training loop.

  // Shuffles in blocks of groups, such as shards. By default, shuffles all samples together.
  std::optional<GroupedOrder> order = {};
};

class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is the size of the whole dataset.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     DistributedSamplerOptions options = {});

  // Collective, in the same order on all ranks of `group`.
  // Errors: mismatch on all ranks if `size` or `options` differ, naming two ranks and the
  // difference.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // Number of this rank's samples in one whole epoch.
  std::size_t size() const;

  // Sets the epoch of the next pass, from the next reset() on. The pass skips the first `offset`
  // samples of the epoch over all ranks. Default: 0, or the loaded offset if load() restored this
  // epoch.
  void set_epoch(std::int64_t epoch, std::optional<std::size_t> offset = std::nullopt);

  // The epoch of the last set_epoch() or load().
  std::int64_t epoch() const;

  // Reports that the program has used this many more samples of this rank, and returns their
  // indices. The sampler cannot count them: a data loader draws ahead.
  // Errors: misuse if more samples are reported than were drawn in this pass.
  std::vector<std::size_t> consume(std::size_t samples);

  // Reports these samples. Errors: misuse, without an effect, unless they are the oldest unconsumed
  // samples of this pass, in their order.
  void consume(const std::vector<std::size_t>& indices);

  // Samples of the epoch that all ranks have consumed, if each consumed as many as this one. Equals
  // the dataset's size once this rank has consumed all its samples. With pad = false, a rank with
  // fewer batches keeps the offset of its last batch.
  std::size_t offset() const;

  // Number of this rank's samples in the epoch from offset() on.
  std::size_t remaining() const;

  // Starts a pass; a data loader's begin() calls it. Without a set_epoch() since the last pass,
  // repeats the epoch from its start. `new_size` replaces the dataset's size.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // Returns this rank's next `batch_size` indices: fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Contains epoch(), offset(), the dataset's size, and the options that determine the order.
  // Errors: misuse if samples were drawn but consume() was never called.
  StateDict state_dict() const;

  // The number of ranks may differ. Errors: misuse, naming the difference, if the size or an option
  // that determines the order differs.
  void load_state_dict(const StateDict& state);

  // Save and load only epoch() and offset(), for torch::save() and torch::load().
  // Errors: as state_dict(); corrupt if the archive contains no sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  class Part;
  friend LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

  std::shared_ptr<State> state_;
};

// The sampler as a component of a checkpoint; keeps its own handle.
LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

}  // namespace lockstep
