// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/agreement.h"
#include "lockstep/data/batch_filler.h"
#include "lockstep/job/step_times.h"
#include "lockstep/tensor/registered_region.h"

namespace lockstep {
namespace {

// Batches that start per step of the loop. More than one gets the loader ahead; few do not delay
// the first batch by allocations.
constexpr int starts_per_step = 2;

// Estimate per batch.
constexpr std::size_t bytes_beside_values = 1024;

std::size_t bytes_of(const SampleSpec& spec) {
  std::size_t bytes = at::elementSize(spec.type);
  for (const std::int64_t size : spec.sizes) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

// Whether there is no other handle or view.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

struct Slot {
  at::Tensor data;
  at::Tensor target;
  PendingBatch batch;
};

void require_valid(const BatchDataset& dataset, const DataLoaderOptions& options) {
  require(options.batch_size > 0, "DataLoader: batch_size must be positive");
  require(options.threads >= 0, [&] {
    return "DataLoader: threads is " + std::to_string(options.threads) +
           ", it must not be negative";
  });
  const std::size_t dims = dataset.data_spec().sizes.size();
  require(options.memory_format == at::MemoryFormat::Contiguous ||
              (options.memory_format == at::MemoryFormat::ChannelsLast && dims == 3) ||
              (options.memory_format == at::MemoryFormat::ChannelsLast3d && dims == 4),
          [&] {
            return "DataLoader: the dataset's samples have " + std::to_string(dims) +
                   " dimensions, which memory_format does not fit";
          });
  if (options.device.is_cpu()) return;
  const bool usable = options.device.is_cuda() && at::hasCUDA();
  if (!usable)
    throw Error(Fault::unsupported, "DataLoader: this LibTorch cannot load batches to the device " +
                                        options.device.str());
}

// An empty loop would silently end the training.
void require_batches(const DistributedSampler& sampler, const DataLoaderOptions& options) {
  const std::size_t samples = sampler.size();
  require(!options.drop_last || samples >= options.batch_size, [&] {
    return "DataLoader: drop_last leaves no batch: this rank has " + std::to_string(samples) +
           " samples in an epoch, fewer than batch_size, " + std::to_string(options.batch_size);
  });
  if (samples == 0)
    log(LogLevel::warning, "DataLoader: this rank has no samples: its loops are empty");
}

}  // namespace

// The current pass, with threads and memory that later passes reuse.
class DataLoader::Pass {
 public:
  Pass(const BatchDataset& dataset, DistributedSampler sampler, const DataLoaderOptions& options);

  // Call it before the first pass.
  void set_region(std::shared_ptr<RegisteredRegion> region) { region_ = std::move(region); }
  RegisteredMemory region() const { return region_ ? region_->memory() : RegisteredMemory(); }
  std::size_t region_bytes() const;

  std::size_t batches_of_epoch() const;
  std::size_t bytes() const { return slots_.size() * slot_bytes_; }
  void consume(const Batch& batch);

  void begin();
  void advance();
  void end() noexcept;
  bool is_over() const { return current_ == nullptr; }
  Batch& batch() { return batch_; }

 private:
  void stop() noexcept;
  void start_next();
  Slot& free_slot();
  at::Tensor with_rows(const SampleSpec& spec, at::MemoryFormat format) const;
  std::optional<std::vector<std::size_t>> draw();
  void present(Slot& slot);
  void take_back(Slot& slot) noexcept;

  const BatchDataset& dataset_;
  DistributedSampler sampler_;
  const DataLoaderOptions options_;
  const SampleSpec data_spec_;
  const SampleSpec target_spec_;
  const std::size_t slot_bytes_;
  const std::size_t most_slots_;

  std::shared_ptr<RegisteredRegion> region_;  // May be null.
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::deque<Slot*> started_;  // In the order of their batches.
  Slot* current_ = nullptr;    // In the loop.
  Batch batch_;
  std::int64_t epoch_ = 0;   // The program may have set the next one.
  std::size_t left_ = 0;     // Unconsumed samples of the pass.
  bool is_running_ = false;  // Whether an iterator exists.
  bool is_drawn_ = false;    // Whether the sampler has no more batches.
  BatchFiller filler_;       // Last: its threads use the memory above.
};

namespace {

std::size_t slots_for(const DataLoaderOptions& options, std::size_t slot_bytes) {
  if (options.threads == 0) return 1;
  const std::size_t indices = options.batch_size * sizeof(std::size_t);
  const std::size_t whole = slot_bytes + indices + bytes_beside_values;
  return 1 + std::max<std::size_t>(1, options.prefetch_bytes / whole);
}

}  // namespace

DataLoader::Pass::Pass(const BatchDataset& dataset, DistributedSampler sampler,
                       const DataLoaderOptions& options)
    : dataset_(dataset),
      sampler_(std::move(sampler)),
      options_((require_valid(dataset, options), options)),
      data_spec_(dataset.data_spec()),
      target_spec_(dataset.target_spec()),
      slot_bytes_(options.batch_size * (bytes_of(data_spec_) + bytes_of(target_spec_))),
      most_slots_(slots_for(options, slot_bytes_)),
      filler_(dataset, options.seed, options.threads) {
  require_batches(sampler_, options_);
}

std::size_t DataLoader::Pass::batches_of_epoch() const {
  const std::size_t samples = sampler_.size();
  const bool has_smaller = samples % options_.batch_size != 0 && !options_.drop_last;
  return samples / options_.batch_size + (has_smaller ? 1 : 0);
}

void DataLoader::Pass::consume(const Batch& batch) {
  sampler_.consume(batch.indices);
  left_ -= batch.indices.size();
  if (!options_.drop_last || left_ >= options_.batch_size) return;
  // Drops the remaining samples: fewer ranks could otherwise form a batch of them.
  sampler_.next(options_.batch_size);  // Draws them if the loop has not.
  sampler_.consume(std::exchange(left_, 0));
}

void DataLoader::Pass::begin() {
  require(!is_running_,
          "DataLoader: a loop over this loader runs already; another one at the same time "
          "needs a DataLoader of its own");
  sampler_.reset();
  epoch_ = sampler_.epoch();
  left_ = sampler_.remaining();
  is_running_ = true;
  is_drawn_ = false;
}

void DataLoader::Pass::advance() {
  // Ordinary tensors also in inference mode: threads write them, and later loops can
  // differentiate.
  const c10::InferenceMode ordinary(false);
  if (current_ != nullptr) take_back(*std::exchange(current_, nullptr));
  try {
    for (int i = 0; i < starts_per_step; ++i) start_next();
    if (started_.empty()) return;
    filler_.finish(started_.front()->batch);
    current_ = started_.front();
    started_.pop_front();
    present(*current_);
  } catch (...) {
    stop();
    throw;
  }
}

void DataLoader::Pass::stop() noexcept {
  filler_.cancel();
  if (current_ != nullptr) take_back(*std::exchange(current_, nullptr));
  for (Slot* const slot : started_) take_back(*slot);
  started_.clear();
  is_drawn_ = true;
}

void DataLoader::Pass::end() noexcept {
  stop();
  is_running_ = false;
}

void DataLoader::Pass::start_next() {
  if (is_drawn_ || (free_.empty() && slots_.size() == most_slots_)) return;
  auto indices = draw();
  if (!indices) {
    is_drawn_ = true;
    return;
  }
  dataset_.will_read(*indices);
  Slot& slot = free_slot();
  const auto rows = static_cast<std::int64_t>(indices->size());
  slot.batch.data = slot.data.narrow(0, 0, rows);
  slot.batch.target = slot.target.narrow(0, 0, rows);
  slot.batch.indices = std::move(*indices);
  slot.batch.epoch = epoch_;
  started_.push_back(&slot);
  filler_.start(slot.batch);
}

std::optional<std::vector<std::size_t>> DataLoader::Pass::draw() {
  auto indices = sampler_.next(options_.batch_size);
  if (!indices || (options_.drop_last && indices->size() < options_.batch_size))
    return std::nullopt;
  const std::size_t largest = *std::ranges::max_element(*indices);
  require(largest < dataset_.size(), [&] {
    return "DataLoader: the sampler gave index " + std::to_string(largest) +
           ", but the dataset has only " + std::to_string(dataset_.size()) + " samples";
  });
  return indices;
}

Slot& DataLoader::Pass::free_slot() {
  if (free_.empty()) free_.push_back(slots_.emplace_back(std::make_unique<Slot>()).get());
  Slot& slot = *free_.back();
  if (!slot.data.defined()) {
    slot.data = with_rows(data_spec_, options_.memory_format);
    slot.target = with_rows(target_spec_, at::MemoryFormat::Contiguous);
  }
  free_.pop_back();
  return slot;
}

at::Tensor DataLoader::Pass::with_rows(const SampleSpec& spec, at::MemoryFormat format) const {
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(options_.batch_size)};
  sizes.insert(sizes.end(), spec.sizes.begin(), spec.sizes.end());
  const at::Tensor block = region_ ? empty_in(region_, sizes, spec.type, format) : at::Tensor();
  if (block.defined()) return block;
  return at::empty(sizes, at::dtype(spec.type).pinned_memory(options_.device.is_cuda()), format);
}

// For all slots of a pass; 0 for ordinary memory.
std::size_t DataLoader::Pass::region_bytes() const {
  if (!options_.device.is_cpu()) return 0;
  const std::size_t slots = std::min(most_slots_, std::max<std::size_t>(1, batches_of_epoch()));
  const std::size_t bytes =
      slots * (RegisteredRegion::block_bytes(options_.batch_size * bytes_of(data_spec_)) +
               RegisteredRegion::block_bytes(options_.batch_size * bytes_of(target_spec_)));
  return bytes <= options_.registered_bytes ? bytes : 0;
}

void DataLoader::Pass::present(Slot& slot) {
  const auto to_device = [&](const at::Tensor& tensor) {
    return options_.device.is_cpu() ? tensor : tensor.to(options_.device, /*non_blocking=*/true);
  };
  batch_ = {.data = to_device(slot.batch.data),
            .target = to_device(slot.batch.target),
            .indices = std::move(slot.batch.indices),
            .epoch = slot.batch.epoch};
}

// LibTorch's allocator reuses pinned memory after the copy.
void DataLoader::Pass::take_back(Slot& slot) noexcept {
  batch_ = {};
  slot.batch.data.reset();
  slot.batch.target.reset();
  const bool reusable =
      options_.device.is_cpu() && is_sole_owner(slot.data) && is_sole_owner(slot.target);
  if (!reusable) {
    slot.data.reset();
    slot.target.reset();
  }
  free_.push_back(&slot);
}

namespace {

// Collective: all ranks get equal regions, or none. `bytes` may be 0 on some ranks.
std::shared_ptr<RegisteredRegion> region_of(std::size_t bytes, const ProcessGroup& group) {
  const auto all = all_gather_value(bytes, group, {.label = "memory of a DataLoader"});
  if (group.size() == 1 || std::ranges::min(all) == 0) return nullptr;
  try {
    return std::make_shared<RegisteredRegion>(group.allocate(std::ranges::max(all)));
  } catch (const Error& error) {
    if (error.fault() != Fault::system) throw;
    if (group.rank() == 0)
      log(LogLevel::warning, "DataLoader: batches lie in ordinary memory: " + bare_text(error));
    return nullptr;
  }
}

void require_same_on_all(const BatchDataset& dataset, const DataLoaderOptions& options,
                         const ProcessGroup& group) {
  require_agreement("DataLoader",
                    {{"the dataset's size", dataset.size()},
                     {"batch_size", options.batch_size},
                     {"drop_last", options.drop_last, true},
                     {"registered_bytes", options.registered_bytes},
                     {"seed", options.seed}},
                    group);
}

}  // namespace

DataLoader::DataLoader(const BatchDataset& dataset, DistributedSampler sampler,
                       DataLoaderOptions options)
    : pass_(std::make_unique<Pass>(dataset, std::move(sampler), options)) {}

// A rank with invalid options joins the exchange before it throws.
DataLoader::DataLoader(const BatchDataset& dataset, DistributedSampler sampler,
                       const ProcessGroup& group, DataLoaderOptions options) {
  require_same_on_all(dataset, options, group);
  std::exception_ptr refused;
  try {
    pass_ = std::make_unique<Pass>(dataset, std::move(sampler), options);
  } catch (...) {
    refused = std::current_exception();
  }
  auto region = region_of(pass_ ? pass_->region_bytes() : 0, group);
  if (refused) std::rethrow_exception(refused);
  pass_->set_region(std::move(region));
}

DataLoader::~DataLoader() = default;

std::size_t DataLoader::size() const { return pass_->batches_of_epoch(); }

DataLoader::Iterator DataLoader::begin() {
  const InPhase phase(StepPhase::data);
  pass_->begin();
  Iterator iterator(*pass_);
  pass_->advance();
  return iterator;
}

void DataLoader::consume(const Batch& batch) { pass_->consume(batch); }

std::size_t DataLoader::bytes() const { return pass_->bytes(); }

RegisteredMemory DataLoader::batch_memory() const { return pass_->region(); }

DataLoader::Iterator::Iterator(Pass& pass) : pass_(&pass) {}

DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&& other) noexcept {
  std::swap(pass_, other.pass_);
  return *this;
}

DataLoader::Iterator::~Iterator() {
  if (pass_ != nullptr) pass_->end();
}

Batch& DataLoader::Iterator::operator*() const {
  require(!pass_->is_over(), "DataLoader: there is no batch at the end of a pass");
  return pass_->batch();
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  const InPhase phase(StepPhase::data);
  pass_->advance();
  return *this;
}

bool operator==(const DataLoader::Iterator& iterator, std::default_sentinel_t) {
  return iterator.pass_->is_over();
}

}  // namespace lockstep
