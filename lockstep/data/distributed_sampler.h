// Distributes a dataset's indices to ranks like Python's torch.utils.data.DistributedSampler: equal
// size, ranks, seed and epoch give equal lists.
//
// Copies share one state: torch::data::make_data_loader() takes one, the caller uses another.
//
//   for (auto epoch = sampler.epoch(); epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) sampler.consume(batch.data.size(0));  // After the training step.
//   }
//
// A state saved after an epoch's last batch resumes with an empty pass, then the program's work
// after the epoch. To save after that work, call set_epoch(epoch + 1) first.
//
// The position counts all ranks' samples: an epoch can resume on any number of ranks. They get each
// unconsumed sample once, except for padding and `drop_last`.
//
// Thread safety: none.
// Blocking: the constructor with a group.
// Cost: with `shuffle`, one int64 per sample of the whole dataset.
// Errors: misuse, and as below.

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

// An order for data read in large groups, such as shards. Samples are numbered group by group. With
// `shuffle`, each epoch shuffles the groups, joins consecutive ones into blocks, and shuffles each
// block's samples. All ranks read the same block at the same time.
struct GroupedOrder {
  std::vector<std::size_t> group_sizes;  // In samples.

  // More groups mix better. Each rank reads this many at a time; a cache must hold twice as many.
  std::size_t groups_per_block = 8;

  // Identifies the samples; must be equal on all ranks and in loaded states. 0: unknown.
  std::uint64_t fingerprint = 0;

  // Called at the start of each pass with all groups in reading order.
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

  // By default, shuffles all samples together.
  std::optional<GroupedOrder> order = {};
};

class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size`: the whole dataset's.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     DistributedSamplerOptions options = {});

  // Collective, in the same order on all ranks of `group`.
  // Errors: mismatch on all ranks for different `size` or `options`, naming two ranks and the
  // difference.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // This rank's samples in a whole epoch.
  std::size_t size() const;

  // Sets the epoch of the next pass, which reset() starts. The pass skips the epoch's first
  // `offset` samples over all ranks. Default: the loaded offset if this epoch was loaded since the
  // last reset(), otherwise 0.
  void set_epoch(std::int64_t epoch, std::optional<std::size_t> offset = std::nullopt);

  // The epoch last set or loaded; by default 0.
  std::int64_t epoch() const;

  // Reports that the program has used this many more samples of this rank, and returns their
  // indices. The sampler cannot count them: a data loader draws ahead.
  // Errors: misuse for more samples than are drawn and not consumed.
  std::vector<std::size_t> consume(std::size_t samples);

  // The same for these samples. Errors: misuse, without an effect, unless they are the oldest
  // unconsumed ones of this pass, in order.
  void consume(const std::vector<std::size_t>& indices);

  // Samples of the epoch that the ranks together have consumed, if each consumed as many as this
  // one. The dataset's size once this rank has consumed all its samples. Exception with pad =
  // false: a rank with fewer batches than others keeps the offset after its last batch.
  std::size_t offset() const;

  // This rank's samples from offset() on.
  std::size_t remaining() const;

  // Starts a pass; a data loader's begin() calls it. Repeats the last epoch from its start unless
  // an epoch was set or loaded since the last reset(). `new_size` replaces the dataset's size.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // This rank's next `batch_size` indices: fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // epoch(), offset(), the dataset's size, and the options that determine the order.
  // Errors: misuse if samples were drawn but consume() was never called.
  StateDict state_dict() const;

  // Errors: misuse, naming the difference, for another size, or another option that determines the
  // order.
  void load_state_dict(const StateDict& state);

  // For torch::save() and torch::load(): only epoch() and offset().
  // Errors: as state_dict(); corrupt if the archive has no sampler; misuse for too large an offset.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  class Part;
  friend LOCKSTEP_API std::unique_ptr<Stateful> state_of(const DistributedSampler& sampler);

  std::shared_ptr<State> state_;
};

// For a checkpoint; keeps its own handle.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(const DistributedSampler& sampler);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> sampler_state(
    const DistributedSampler& sampler) {
  return state_of(sampler);
}

}  // namespace lockstep
