// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>

#include "lockstep/comm/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

// Where a pass through the dataset is.
struct Pass {
  std::int64_t epoch = 0;
  std::size_t position = 0;
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

}  // namespace

struct DistributedSampler::State {
  State(std::size_t n, std::size_t replicas, std::size_t r, const DistributedSamplerOptions& o)
      : size(n), num_replicas(replicas), rank(r), options(o) {}

  std::size_t size;
  const std::size_t num_replicas;
  const std::size_t rank;
  const DistributedSamplerOptions options;
  bool begun = false;  // Whether there was a reset().
  Pass current = {};
  std::optional<Pass> coming;  // What set_epoch() asked for since the last reset().
  at::Tensor order;            // Of the current pass; undefined when it is 0, 1, 2, ...

  const Pass& pass() const { return coming ? *coming : current; }

  std::size_t samples() const {
    if (options.drop_last) return size / num_replicas;
    const std::size_t most = size / num_replicas + (size % num_replicas != 0);
    return options.pad || most == 0 || rank + (most - 1) * num_replicas < size ? most : most - 1;
  }

  void draw_order() {
    order = at::Tensor();
    if (!options.shuffle) return;
    const auto seed = options.seed + static_cast<std::uint64_t>(current.epoch);
    order = at::randperm(static_cast<std::int64_t>(size), at::detail::createCPUGenerator(seed),
                         at::kLong);
  }

  // The index at place `k` of this rank. Padding goes through the order again from its start.
  std::size_t index_at(std::size_t k, const std::int64_t* shuffled) const {
    const std::size_t place = (rank + k * num_replicas) % size;
    return shuffled ? static_cast<std::size_t>(shuffled[place]) : place;
  }
};

DistributedSampler::DistributedSampler(std::size_t size, int num_replicas, int rank,
                                       DistributedSamplerOptions options) {
  require(num_replicas > 0, "DistributedSampler: num_replicas is " + std::to_string(num_replicas) +
                                ", it must be positive");
  require(rank >= 0 && rank < num_replicas, "DistributedSampler: rank is " + std::to_string(rank) +
                                                ", it must be in 0.." +
                                                std::to_string(num_replicas - 1));
  require(options.pad || !options.drop_last,
          "DistributedSampler: drop_last leaves samples out, pad = false forbids it; choose one");
  state_ = std::make_shared<State>(size, static_cast<std::size_t>(num_replicas),
                                   static_cast<std::size_t>(rank), options);
}

DistributedSampler::DistributedSampler(std::size_t size, const ProcessGroup& group,
                                       DistributedSamplerOptions options)
    : DistributedSampler(size, group.size(), group.rank(), options) {}

std::size_t DistributedSampler::size() const { return state_->samples(); }

void DistributedSampler::set_epoch(std::int64_t epoch, std::size_t position) {
  require(epoch >= 0,
          "DistributedSampler: epoch is " + std::to_string(epoch) + ", it must not be negative");
  require(position <= size(), "DistributedSampler: position " + std::to_string(position) +
                                  " is beyond the " + std::to_string(size()) +
                                  " samples of this rank");
  state_->coming = Pass{epoch, position};
}

std::int64_t DistributedSampler::epoch() const { return state_->pass().epoch; }

std::size_t DistributedSampler::position() const { return state_->pass().position; }

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->size = *new_size;
  state_->current = state_->coming.value_or(Pass{state_->current.epoch, 0});
  state_->coming.reset();
  state_->begun = true;
  state_->draw_order();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  require(batch_size > 0, "DistributedSampler: batch_size must be positive");
  if (!state_->begun) reset();

  auto& position = state_->current.position;
  const std::size_t end = state_->samples();
  if (position >= end) return std::nullopt;

  const auto* shuffled =
      state_->order.defined() ? state_->order.const_data_ptr<std::int64_t>() : nullptr;
  std::vector<std::size_t> batch(std::min(batch_size, end - position));
  for (std::size_t& index : batch) index = state_->index_at(position++, shuffled);
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  write(archive, "epoch", epoch());
  write(archive, "position", static_cast<std::int64_t>(position()));
  write(archive, "num_replicas", static_cast<std::int64_t>(state_->num_replicas));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const std::int64_t replicas = read(archive, "num_replicas");
  require(replicas == static_cast<std::int64_t>(state_->num_replicas),
          "DistributedSampler: saved among " + std::to_string(replicas) +
              " replicas, loaded among " + std::to_string(state_->num_replicas));
  set_epoch(read(archive, "epoch"), static_cast<std::size_t>(read(archive, "position")));
}

}  // namespace lockstep
