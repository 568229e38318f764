// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/agreement.h"
#include "lockstep/data/grouped_epoch.h"

namespace lockstep {
namespace {

struct Start {
  std::int64_t epoch = 0;
  std::size_t offset = 0;  // In the epoch's order over all ranks.
};

// This rank's samples in the current pass.
struct Taken {
  std::size_t drawn = 0;
  std::size_t consumed = 0;
  std::size_t missing = 0;  // That the last batch lacked.
};

void write(torch::serialize::OutputArchive& archive, const char* key, std::int64_t value) {
  archive.write(key, at::scalar_tensor(value, at::kLong), /*is_buffer=*/true);
}

std::int64_t read(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor value;
  if (archive.try_read(key, value, /*is_buffer=*/true) && value.scalar_type() == at::kLong &&
      value.numel() == 1 && value.item<std::int64_t>() >= 0)
    return value.item<std::int64_t>();
  throw Error(Fault::corrupt,
              std::string("DistributedSampler: the archive has no count named '") + key + "'");
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }

template <class T>
void require_same(const StateDict& saved, const char* name, T ours) {
  const T theirs = value_of<T>(saved, name);
  require(theirs == ours, [&] {
    return std::string("DistributedSampler: saved with ") + name + " = " + text_of(theirs) +
           ", loaded with " + text_of(ours);
  });
}

// 0 without groups, as in older checkpoints.
std::uint64_t digest_of_order(const DistributedSamplerOptions& options) {
  return options.order ? data::digest_of(*options.order) : 0;
}

// Errors: mismatch on all ranks, naming the first differing group.
void require_same_groups(const GroupedOrder& order, const ProcessGroup& group) {
  struct Digests {
    std::uint64_t sizes, samples;
  };
  const auto digests =
      all_gather_value(Digests{hash_of_elements(order.group_sizes), order.fingerprint}, group,
                       {.label = "groups of a DistributedSampler"});
  const auto differs = [&](std::uint64_t Digests::*digest) {
    const auto found = std::ranges::find_if(
        digests, [&](const Digests& each) { return each.*digest != digests[0].*digest; });
    return static_cast<std::size_t>(found - digests.begin());
  };
  const std::size_t groups = order.group_sizes.size();
  if (const std::size_t rank = differs(&Digests::sizes); rank < digests.size()) {
    std::vector<std::size_t> mine = order.group_sizes;
    std::vector<std::size_t> all(groups * digests.size());
    group.all_gather(buffer_of(mine), buffer_of(all), {}, {.label = "sizes of groups"});
    const auto theirs = all.begin() + static_cast<std::ptrdiff_t>(rank * groups);
    const auto [ours, other] =
        std::mismatch(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(groups), theirs);
    std::string text = "DistributedSampler: group " + std::to_string(ours - all.begin());
    text += " of its order, such as a shard, has " + std::to_string(*ours) + " samples on rank 0, ";
    throw Error(Fault::mismatch,
                text + std::to_string(*other) + " on rank " + std::to_string(rank));
  }
  if (const std::size_t rank = differs(&Digests::samples); rank < digests.size())
    throw Error(Fault::mismatch,
                "DistributedSampler: rank 0 and rank " + std::to_string(rank) +
                    " have groups of the same sizes, such as shards, with other samples in them: "
                    "their names or their places differ");
}

// Returns `size`.
std::size_t same_on_all(std::size_t size, const ProcessGroup& group,
                        const DistributedSamplerOptions& options) {
  require_agreement("DistributedSampler",
                    {{"size", size},
                     {"seed", options.seed},
                     {"shuffle", options.shuffle, true},
                     {"drop_last", options.drop_last, true},
                     {"pad", options.pad, true},
                     {"an order of groups", options.order.has_value(), true},
                     {"groups in its order", options.order ? options.order->group_sizes.size() : 0},
                     {"groups_per_block", options.order ? options.order->groups_per_block : 0}},
                    group);
  if (options.order) require_same_groups(*options.order, group);
  return size;
}

}  // namespace

struct DistributedSampler::State {
  State(std::size_t n, std::size_t replicas, std::size_t r, DistributedSamplerOptions o)
      : size(n), num_replicas(replicas), rank(r), options(std::move(o)) {}

  std::size_t size;
  const std::size_t num_replicas;
  const std::size_t rank;
  const DistributedSamplerOptions options;
  bool begun = false;
  bool ever_consumed = false;
  Start current = {};
  Taken taken = {};
  std::optional<Start> coming;  // Set by set_epoch() or load() since the last reset().
  bool loaded = false;          // Whether load() has set `coming`.
  at::Tensor order;             // Undefined for the order 0, 1, 2, ...

  const Start& start() const { return coming ? *coming : current; }

  std::size_t samples(std::size_t offset) const {
    const std::size_t left = size - std::min(offset, size);
    if (options.drop_last) return left / num_replicas;
    const std::size_t most = left / num_replicas + (left % num_replicas != 0);
    return options.pad || most == 0 || rank + (most - 1) * num_replicas < left ? most : most - 1;
  }

  std::size_t offset() const {
    if (coming) return coming->offset;
    std::size_t consumed = taken.consumed;
    if (consumed == samples(current.offset)) {
      // Without padding, other ranks may have one more sample, consumed if the batch had
      // space.
      if (options.pad) return size;
      consumed += taken.missing;
    }
    return std::min(current.offset + consumed * num_replicas, size);
  }

  void draw_order() {
    order = at::Tensor();
    if (options.order) return draw_groups(*options.order);
    if (!options.shuffle) return;
    const auto seed = options.seed + static_cast<std::uint64_t>(current.epoch);
    order = at::randperm(static_cast<std::int64_t>(size), at::detail::createCPUGenerator(seed),
                         at::kLong);
  }

  void draw_groups(const GroupedOrder& groups) {
    require(data::samples_in(groups) == size,
            "DistributedSampler: the groups of the order do not have as many samples as the "
            "dataset");
    data::GroupedEpoch epoch =
        data::draw_grouped_epoch(groups, options.shuffle, options.seed, current.epoch);
    order = std::move(epoch.samples);
    if (groups.at_pass) groups.at_pass(epoch.groups);
  }

  // This rank's samples [begin, end) in the pass. As in Python, padding repeats the epoch's start,
  // even if the pass starts later.
  std::vector<std::size_t> indices(std::size_t begin, std::size_t end) const {
    const auto* shuffled = order.defined() ? order.const_data_ptr<std::int64_t>() : nullptr;
    std::vector<std::size_t> result(end - begin);
    for (std::size_t& index : result) {
      const std::size_t place = (current.offset + rank + begin++ * num_replicas) % size;
      index = shuffled ? static_cast<std::size_t>(shuffled[place]) : place;
    }
    return result;
  }

  void load(std::int64_t epoch, std::size_t offset) {
    require(offset <= size, [&] {
      return "DistributedSampler: offset " + std::to_string(offset) + " is beyond the " +
             std::to_string(size) + " samples of the dataset";
    });
    coming = Start{epoch, offset};
    loaded = true;
  }

  void require_consumption() const {
    require(coming || taken.drawn == 0 || ever_consumed,
            "DistributedSampler: the number of consumed samples is unknown: call consume() after "
            "each batch");
  }

  void require_same_order(const StateDict& saved) const {
    const auto found = saved.values.find("order");
    const std::int64_t theirs =
        found == saved.values.end() ? 0 : value_of<std::int64_t>(saved, "order");
    require(theirs == static_cast<std::int64_t>(digest_of_order(options)),
            "DistributedSampler: saved with another order of groups than loaded: other samples or "
            "sizes, another groups_per_block, or none");
  }

  void require_fits(const StateDict& saved) const {
    require_same(saved, "size", static_cast<std::int64_t>(size));
    require_same(saved, "seed", static_cast<std::int64_t>(options.seed));
    require_same(saved, "shuffle", options.shuffle);
    require_same(saved, "drop_last", options.drop_last);
    require_same(saved, "pad", options.pad);
    require_same_order(saved);
    const auto offset = value_of<std::int64_t>(saved, "offset");
    require(value_of<std::int64_t>(saved, "epoch") >= 0 && offset >= 0 &&
                offset <= static_cast<std::int64_t>(size),
            "DistributedSampler: the saved epoch or offset is out of range");
  }
};

class DistributedSampler::Part : public Stateful {
 public:
  explicit Part(const DistributedSampler& sampler) : sampler_(sampler) {}

  StateDict state_dict() override { return sampler_.state_dict(); }
  StateRequest wanted(const StateDict& saved) override {
    sampler_.state_->require_fits(saved);
    return {};
  }
  void load_state_dict(StateDict state) override { sampler_.load_state_dict(state); }

 private:
  DistributedSampler sampler_;
};

DistributedSampler::DistributedSampler(std::size_t size, int num_replicas, int rank,
                                       DistributedSamplerOptions options) {
  require(num_replicas > 0, [&] {
    return "DistributedSampler: num_replicas is " + std::to_string(num_replicas) +
           ", it must be positive";
  });
  require(rank >= 0 && rank < num_replicas, [&] {
    return "DistributedSampler: rank is " + std::to_string(rank) + ", it must be in 0.." +
           std::to_string(num_replicas - 1);
  });
  require(options.pad || !options.drop_last,
          "DistributedSampler: drop_last = true and pad = false contradict each other: choose one");
  require(!options.order || options.order->groups_per_block > 0,
          "DistributedSampler: groups_per_block must be positive");
  state_ = std::make_shared<State>(size, static_cast<std::size_t>(num_replicas),
                                   static_cast<std::size_t>(rank), std::move(options));
}

DistributedSampler::DistributedSampler(std::size_t size, const ProcessGroup& group,
                                       DistributedSamplerOptions options)
    : DistributedSampler(same_on_all(size, group, options), group.size(), group.rank(), options) {}

std::size_t DistributedSampler::size() const { return state_->samples(0); }

void DistributedSampler::set_epoch(std::int64_t epoch, std::optional<std::size_t> offset) {
  require(epoch >= 0, [&] {
    return "DistributedSampler: epoch is " + std::to_string(epoch) + ", it must not be negative";
  });
  if (!offset && state_->loaded && epoch == state_->coming->epoch) return;
  state_->load(epoch, offset.value_or(0));
  state_->loaded = false;
}

std::int64_t DistributedSampler::epoch() const { return state_->start().epoch; }

std::size_t DistributedSampler::offset() const { return state_->offset(); }

std::size_t DistributedSampler::remaining() const { return state_->samples(offset()); }

std::vector<std::size_t> DistributedSampler::consume(std::size_t samples) {
  Taken& taken = state_->taken;
  require(samples <= taken.drawn - taken.consumed, [&] {
    return "DistributedSampler: consume(" + std::to_string(samples) + ") after " +
           std::to_string(taken.consumed) + " of the " + std::to_string(taken.drawn) +
           " samples drawn in this pass were consumed";
  });
  state_->ever_consumed = true;
  const std::size_t begin = taken.consumed;
  taken.consumed += samples;
  return state_->indices(begin, taken.consumed);
}

void DistributedSampler::consume(const std::vector<std::size_t>& indices) {
  const Taken& taken = state_->taken;
  const bool are_next = !indices.empty() && indices.size() <= taken.drawn - taken.consumed &&
                        state_->indices(taken.consumed, taken.consumed + indices.size()) == indices;
  require(
      are_next,
      "DistributedSampler: consume() takes each batch of a pass once, in the order of the loop");
  consume(indices.size());
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->size = *new_size;
  state_->current = state_->coming.value_or(Start{state_->current.epoch, 0});
  state_->taken = {};
  state_->coming.reset();
  state_->loaded = false;
  state_->begun = true;
  state_->draw_order();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  require(batch_size > 0, "DistributedSampler: batch_size must be positive");
  if (!state_->begun) reset();

  Taken& taken = state_->taken;
  const std::size_t begin = taken.drawn;
  const std::size_t left = state_->samples(state_->current.offset) - begin;
  if (left == 0) return std::nullopt;
  taken.drawn += std::min(batch_size, left);
  taken.missing = batch_size - std::min(batch_size, left);
  return state_->indices(begin, taken.drawn);
}

StateDict DistributedSampler::state_dict() const {
  state_->require_consumption();
  const DistributedSamplerOptions& options = state_->options;
  StateDict state{.tensors = {},
                  .values = {{"epoch", epoch()},
                             {"offset", static_cast<std::int64_t>(offset())},
                             {"size", static_cast<std::int64_t>(state_->size)},
                             {"seed", static_cast<std::int64_t>(options.seed)},
                             {"shuffle", options.shuffle},
                             {"drop_last", options.drop_last},
                             {"pad", options.pad}}};
  if (options.order)
    state.values["order"] = static_cast<std::int64_t>(data::digest_of(*options.order));
  return state;
}

void DistributedSampler::load_state_dict(const StateDict& state) {
  state_->require_fits(state);
  state_->load(value_of<std::int64_t>(state, "epoch"),
               static_cast<std::size_t>(value_of<std::int64_t>(state, "offset")));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  state_->require_consumption();
  write(archive, "epoch", epoch());
  write(archive, "offset", static_cast<std::int64_t>(offset()));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  state_->load(read(archive, "epoch"), static_cast<std::size_t>(read(archive, "offset")));
}

std::unique_ptr<Stateful> state_of(const DistributedSampler& sampler) {
  return std::make_unique<DistributedSampler::Part>(sampler);
}

}  // namespace lockstep
