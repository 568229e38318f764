// Places tensors of Python programs in registered memory, which collectives need not copy.
//
// Wraps LibTorch's CPU allocator. Between open() and close(), tensors in a RegisteredTensors scope
// get registered blocks. So do tensors of a size that a collective had to copy, such as buffers
// that fully_shard() allocates in each step.
//
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <unordered_set>

#include "lockstep/torch_backend/registered_blocks.h"

namespace lockstep::torch_backend {

// While it exists, this thread's new tensors are in registered memory, as `demand` requires.
class RegisteredTensors {
 public:
  enum class Demand {
    none,
    if_there_is_memory,  // Ordinary below small_bytes, without a group, or if memory is short.
    always               // Error(system) if memory is short, Error(misuse) without a group.
  };

  explicit RegisteredTensors(Demand demand);
  ~RegisteredTensors();
  RegisteredTensors(const RegisteredTensors&) = delete;
  RegisteredTensors& operator=(const RegisteredTensors&) = delete;

  // Sets this thread's demand and returns the previous one, for scopes of another language.
  static Demand exchange(Demand demand);

 private:
  const Demand outer_;
};

class RegisteredAllocator final : public c10::Allocator {
 public:
  // Below, a copy costs less than another synchronization.
  static constexpr std::size_t small_bytes = std::size_t{64} << 10;

  // Limit of all regions in MB, except for Demand::always; 0: none. LOCKSTEP_REGISTERED_MB
  // overrides it.
  static constexpr std::size_t default_limit_mb = 1024;

  // The first call installs the allocator permanently.
  static RegisteredAllocator& instance();

  // Null before instance().
  static RegisteredAllocator* find();

  // Throws `error`, possibly converted.
  using Thrower = void (*)(const std::exception_ptr& error);

  // Takes memory from `source` until close(). allocate() reports Errors through `thrower`.
  void open(RegisteredBlocks::Source source, Thrower thrower = rethrow);
  void close() { blocks_.close(); }
  bool is_open() const { return blocks_.is_open(); }

  // Unless `tensor` is registered or small, later ones of its storage's size get registered blocks.
  void note_moved(const at::Tensor& tensor);

  bool contains(const at::Tensor& tensor) const;

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

 private:
  RegisteredAllocator();
  void* block_for(std::size_t bytes);
  void* required_block(std::size_t bytes);
  bool has_moved(std::size_t bytes) const;
  static void free(void* data);
  static void rethrow(const std::exception_ptr& error) { std::rethrow_exception(error); }

  c10::Allocator* const next_;
  const std::size_t limit_;
  RegisteredBlocks blocks_;
  std::atomic<Thrower> thrower_{rethrow};
  mutable std::mutex mutex_;               // Guards moved_.
  std::unordered_set<std::size_t> moved_;  // In bytes.
};

}  // namespace lockstep::torch_backend
