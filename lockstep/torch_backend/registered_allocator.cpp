// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/registered_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"

namespace lockstep::torch_backend {
namespace {

using Demand = RegisteredTensors::Demand;

thread_local Demand demand_of_thread = Demand::none;

std::atomic<RegisteredAllocator*> first_made{nullptr};

// For programs whose tensor sizes never repeat.
constexpr std::size_t most_sizes = 4096;

std::size_t limit_from_environment() {
  const char* const text = read_variable("LOCKSTEP_REGISTERED_MB");
  std::size_t mb = RegisteredAllocator::default_limit_mb;
  if (text != nullptr) {
    const std::string_view digits = text;
    const auto [stop, problem] = std::from_chars(digits.begin(), digits.end(), mb);
    require(problem == std::errc() && stop == digits.end() && mb < (std::size_t{1} << 40), [&] {
      return "LOCKSTEP_REGISTERED_MB='" + std::string(digits) + "' is not a number of megabytes";
    });
  }
  return mb << 20;
}

}  // namespace

RegisteredTensors::RegisteredTensors(Demand demand) : outer_(exchange(demand)) {}

RegisteredTensors::~RegisteredTensors() { exchange(outer_); }

RegisteredTensors::Demand RegisteredTensors::exchange(Demand demand) {
  return std::exchange(demand_of_thread, demand);
}

// Never destroyed, as tensors may outlive everything else.
RegisteredAllocator& RegisteredAllocator::instance() {
  static RegisteredAllocator& ours = [&]() -> RegisteredAllocator& {
    auto& made = *new RegisteredAllocator;
    // Other threads may read LibTorch's table of allocators, plain memory, concurrently.
    std::atomic_thread_fence(std::memory_order_release);
    c10::SetCPUAllocator(&made, /*priority=*/1);
    ::pthread_atfork([] { instance().blocks_.before_fork(); },
                     [] { instance().blocks_.after_fork_in_parent(); },
                     [] { instance().blocks_.after_fork_in_child(); });
    first_made = &made;
    return made;
  }();
  return ours;
}

RegisteredAllocator* RegisteredAllocator::find() { return first_made; }

RegisteredAllocator::RegisteredAllocator()
    : next_(c10::GetCPUAllocator()), limit_(limit_from_environment()) {}

void RegisteredAllocator::open(RegisteredBlocks::Source source, Thrower thrower) {
  thrower_ = thrower;
  blocks_.open(std::move(source));
}

void RegisteredAllocator::note_moved(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.is_cpu()) return;
  const std::size_t bytes = tensor.storage().nbytes();
  if (bytes < small_bytes || limit_ == 0 || contains(tensor)) return;
  const std::lock_guard lock(mutex_);
  if (moved_.size() >= most_sizes) moved_.clear();
  moved_.insert(bytes);
}

bool RegisteredAllocator::has_moved(std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return moved_.contains(bytes);
}

bool RegisteredAllocator::contains(const at::Tensor& tensor) const {
  return blocks_.contains(tensor.const_data_ptr());
}

c10::DataPtr RegisteredAllocator::allocate(std::size_t bytes) {
  void* const block = block_for(bytes);
  if (block == nullptr) return next_->allocate(bytes);
  c10::profiledCPUMemoryReporter().New(block, bytes);
  return {block, block, &free, c10::Device(c10::DeviceType::CPU)};
}

void* RegisteredAllocator::block_for(std::size_t bytes) {
  const Demand demand = demand_of_thread;
  if (demand == Demand::always && bytes > 0) return required_block(bytes);
  if (bytes < small_bytes || !blocks_.is_open()) return nullptr;
  if (demand == Demand::none && !has_moved(bytes)) return nullptr;
  return blocks_.take(bytes, limit_);
}

// torch.empty() converts any Error to RuntimeError.
void* RegisteredAllocator::required_block(std::size_t bytes) {
  try {
    return blocks_.require(bytes);
  } catch (const Error&) {
    thrower_.load()(std::current_exception());
    throw;
  }
}

// Frees memory of both allocators: oneDNN passes only the address.
void RegisteredAllocator::free(void* data) {
  RegisteredAllocator& ours = instance();
  if (!ours.blocks_.give_back(data)) return ours.next_->raw_deleter()(data);
  c10::profiledCPUMemoryReporter().Delete(data);
}

c10::DeleterFnPtr RegisteredAllocator::raw_deleter() const { return &free; }

void RegisteredAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  default_copy_data(to, from, bytes);
}

}  // namespace lockstep::torch_backend
