// A sampler that distributes the indices of a dataset to ranks in the order of Python's
// torch.utils.data.DistributedSampler: equal size, ranks, seed and epoch give equal lists.
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
// A state that was saved after the last batch of an epoch resumes with an empty pass, and then with
// the program's work after the epoch. To save after that work, call set_epoch(epoch + 1) first.
//
// The position counts the samples of all ranks, so an interrupted epoch can resume on any number of
// ranks. Each sample that was not consumed is then distributed once.
//
// Thread safety: none. A data loader draws on the thread that iterates it, not on its workers.
// Blocking: only the constructor with a group, which is collective; nothing else communicates.
// Cost: while shuffling, one int64 per sample of the whole dataset; otherwise nothing.
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

// An order for data that is read in large groups, such as shards. It needs only a few groups at a
// time. Samples are numbered group by group. Each epoch shuffles the groups, cuts them into blocks,
// and shuffles the samples of each block. The order depends only on seed and epoch, and is
// distributed like any other: all ranks read the same block at the same time.
struct GroupedOrder {
  std::vector<std::size_t> group_sizes;  // Number of samples of each group.

  // More groups mix better. Each rank reads from this many at a time, and a cache must hold twice
  // as many.
  std::size_t groups_per_block = 8;

  // Identifies the samples. It is compared on all ranks, and with the fingerprint of a loaded
  // state. 0: unknown.
  std::uint64_t fingerprint = 0;

  // Called at the start of each pass with the groups that it reads, in this order. May be empty.
  std::function<void(const std::vector<std::size_t>& groups)> at_pass = {};
};

// All fields must be equal on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;     // A new order in each epoch; otherwise 0, 1, 2, ...
  std::uint64_t seed = 0;  // Seed of the order; the epoch is added to it.
  bool drop_last = false;  // Drops the end of the order that does not fill all ranks;
                           // otherwise the beginning of the order is repeated.
  bool pad = true;         // false: each index occurs exactly once, as an exact evaluation needs.
                           // Ranks may then differ by one sample, and thus by one batch, which
                           // blocks a training loop.

  // Shuffles in blocks of groups, such as shards. By default, all samples are shuffled together.
  std::optional<GroupedOrder> order = {};
};

class LOCKSTEP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is the size of the whole dataset.
  DistributedSampler(std::size_t size, int num_replicas, int rank,
                     DistributedSamplerOptions options = {});

  // Collective: all ranks of `group` create their samplers in the same order.
  // Errors: mismatch on all ranks if `size` or `options` differ. The message names two ranks and
  // the difference.
  DistributedSampler(std::size_t size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // Number of samples of this rank in one whole epoch.
  std::size_t size() const;

  // Sets the epoch of the next pass, which starts at the next reset(). The pass skips the first
  // `offset` samples of the epoch's order over all ranks; default: 0. For the epoch that load()
  // restored, the default is the loaded offset, until the next reset().
  void set_epoch(std::int64_t epoch, std::optional<std::size_t> offset = std::nullopt);

  // The epoch of the last set_epoch() or load().
  std::int64_t epoch() const;

  // Reports that the program has used this many more samples of this rank. The sampler cannot count
  // them itself: a data loader draws up to two batches ahead for each worker. Returns the indices
  // of these samples in the dataset.
  // Errors: misuse if more samples are reported than were drawn in this pass.
  std::vector<std::size_t> consume(std::size_t samples);

  // Reports these samples. Errors: misuse, without an effect, unless they are the oldest unconsumed
  // samples of this pass, in their order.
  void consume(const std::vector<std::size_t>& indices);

  // Samples of the epoch that all ranks have consumed, assuming that each consumed as many as this
  // one. Equals the dataset's size once this rank has consumed all its samples. With pad = false, a
  // rank with fewer batches than others keeps the offset of its last batch.
  std::size_t offset() const;

  // Number of samples of this rank in the epoch from offset() on.
  std::size_t remaining() const;

  // Starts a pass. A data loader's begin() calls it. Without set_epoch() since the last pass, the
  // last epoch is repeated from its start. `new_size` replaces the size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // Returns the next `batch_size` indices of this rank: fewer at the end, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Contains epoch(), offset(), the size of the dataset, and the options that determine the order.
  // Errors: misuse if samples were drawn but consume() was never called.
  StateDict state_dict() const;

  // Loads a state on any number of ranks.
  // Errors: misuse, naming the difference, if the state has another size or other options.
  void load_state_dict(const StateDict& state);

  // Save and load only epoch() and offset(), for torch::save() and torch::load().
  // Errors: as state_dict(); corrupt if the archive does not contain a sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  class Part;
  friend LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

  std::shared_ptr<State> state_;
};

// The sampler as a component of a checkpoint. The result keeps its own handle.
LOCKSTEP_API std::unique_ptr<Stateful> sampler_state(const DistributedSampler& sampler);

}  // namespace lockstep
