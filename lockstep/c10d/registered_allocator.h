// Puts tensors of a Python program into registered memory, on which collectives copy nothing.
//
// It stands before LibTorch's allocator of CPU memory. While this process is in a group, three
// kinds of tensors get blocks in registered memory: those made under a RegisteredTensors scope,
// those of lockstep.empty() and Backend::allocateTensor(), and those that are as large as tensors
// that collectives had to copy before. The last kind are the buffers of fully_shard() and the
// activations of tensor parallel layers, which programs make anew in each step.
//
// Thread safety: any thread may call any member at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <unordered_set>

#include "lockstep/c10d/registered_blocks.h"

namespace lockstep::c10d {

// While it lives, tensors that this thread makes lie in registered memory.
class RegisteredTensors {
 public:
  enum class Demand {
    none,
    if_there_is_memory,  // Else in ordinary memory. Tensors of less than small_bytes always are.
    always               // Too little memory is an Error(system), no group an Error(misuse).
  };

  explicit RegisteredTensors(Demand demand);
  ~RegisteredTensors();
  RegisteredTensors(const RegisteredTensors&) = delete;
  RegisteredTensors& operator=(const RegisteredTensors&) = delete;

  // Sets what this thread demands, and returns what it did. For scopes of another language.
  static Demand exchange(Demand demand);

 private:
  const Demand outer_;
};

class RegisteredAllocator final : public c10::Allocator {
 public:
  // Collectives copy less than this faster than they wait once more for each other.
  static constexpr std::size_t small_bytes = std::size_t{64} << 10;

  // Bytes of registered memory that tensors get without being asked for. LOCKSTEP_REGISTERED_MB
  // sets it; 0 leaves it to those that ask.
  static constexpr std::size_t default_limit_mb = 1024;

  // The one of this process. The first call puts it before LibTorch's allocator, for ever.
  static RegisteredAllocator& instance();

  // Null before that call.
  static RegisteredAllocator* find();

  // Throws an Error, possibly as something else.
  using Thrower = void (*)(const std::exception_ptr& error);

  // Gives blocks in what `source` allocates, until close(). Errors leave allocate() through
  // `thrower`.
  void open(RegisteredBlocks::Source source, Thrower thrower = rethrow);
  void close() { blocks_.close(); }
  bool is_open() const { return blocks_.is_open(); }

  // A collective moves this tensor. If it has to copy it, later ones of its size get blocks.
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
  std::unordered_set<std::size_t> moved_;  // Bytes of tensors that collectives had to copy.
};

}  // namespace lockstep::c10d
