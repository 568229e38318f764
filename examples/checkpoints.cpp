// SPDX-License-Identifier: Apache-2.0
#include "examples/checkpoints.h"

#include <fcntl.h>
#include <unistd.h>

#include <iostream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/checkpoint_reader.h"

Checkpoints::Checkpoints(const Options& options, const lockstep::ProcessGroup& world,
                         const lockstep::TrainingState& state)
    : options_(options), world_(world), state_(state) {
  if (options.checkpoint.empty()) return;
  checkpointer_.emplace(
      options.checkpoint, world,
      lockstep::CheckpointerOptions{.keep_last = options.keep, .async = options.async});
  world.on_preemption();
}

void Checkpoints::resume() {
  if (!options_.resume.empty()) load();
  if (world_.rank() == 0 && saved_ > 0) std::cerr << "resumed after step " << saved_ << std::endl;
  require_newest();
}

// Steps trained from here could not be saved.
void Checkpoints::require_newest() const {
  if (!checkpointer_ || options_.resume == "auto") return;
  const auto newest = lockstep::latest_checkpoint(options_.checkpoint);
  if (!newest || (saved_ > 0 && lockstep::CheckpointReader(*newest).step() <= saved_)) return;
  throw std::runtime_error(newest->string() +
                           " exists already: continue from it with --resume auto, or choose "
                           "another folder with --checkpoint");
}

void Checkpoints::load() {
  if (options_.resume != "auto") {
    saved_ = lockstep::load_checkpoint(options_.resume, state_, world_);
  } else if (const auto resumed = checkpointer_->resume(state_)) {
    saved_ = resumed->step;
  }
}

bool Checkpoints::make_room(std::int64_t step) {
  if (!checkpointer_ || !world_.preempted()) return false;
  finish(step);
  return true;
}

void Checkpoints::after_step(std::int64_t step) {
  if (!checkpointer_ || options_.checkpoint_every == 0) return;
  if (options_.async && !std::exchange(is_prepared_, true)) checkpointer_->prepare(state_);
  if (step % options_.checkpoint_every != 0) return;
  checkpointer_->save(step, state_);
  saved_ = step;
}

void Checkpoints::finish(std::int64_t step) {
  if (!checkpointer_) return;
  if (step != saved_) checkpointer_->save(step, state_);
  checkpointer_->wait();
}

std::int64_t global_batch_of(std::int64_t resumed, std::optional<std::int64_t> requested,
                             const lockstep::ProcessGroup& world) {
  if (!requested || *requested == resumed) return resumed;
  if (world.rank() == 0)
    std::cerr << "note: --batch-size sets steps of " << *requested
              << " samples; the resumed training "
              << "had " << resumed << std::endl;
  return *requested;
}

std::size_t share_of(std::int64_t global_batch, const lockstep::ProcessGroup& world) {
  if (global_batch % world.size() != 0)
    throw std::runtime_error(
        std::to_string(global_batch) + " samples per step cannot be divided among " +
        std::to_string(world.size()) + " ranks: choose another number of ranks, or --batch-size");
  return static_cast<std::size_t>(global_batch / world.size());
}

std::int64_t last_step(const Options& options, std::int64_t step,
                       const lockstep::DistributedSampler& sampler, std::size_t batch_size,
                       bool drop_last) {
  if (options.steps > 0) {
    if (step <= options.steps) return options.steps;
    throw std::runtime_error("the resumed training has made " + std::to_string(step) +
                             " steps, more than --steps");
  }
  if (sampler.epoch() >= options.epochs) return step;
  const auto batches = [&](std::size_t samples) {
    return static_cast<std::int64_t>((samples + (drop_last ? 0 : batch_size - 1)) / batch_size);
  };
  return step + batches(sampler.remaining()) +
         (options.epochs - sampler.epoch() - 1) * batches(sampler.size());
}

SampleLog::SampleLog(const std::string& file, int rank)
    : file_(file),
      rank_(rank),
      fd_(file.empty() ? -1
                       : ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file.empty() && fd_ < 0) throw std::system_error(errno, std::generic_category(), file);
}

SampleLog::~SampleLog() {
  if (fd_ >= 0) ::close(fd_);
}

void SampleLog::write(std::int64_t step, const std::vector<std::size_t>& indices) const {
  if (fd_ < 0) return;
  std::string line = std::to_string(step) + ' ' + std::to_string(rank_);
  for (const std::size_t index : indices) line += ' ' + std::to_string(index);
  line += '\n';
  if (::write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw std::system_error(errno, std::generic_category(), file_);
}
