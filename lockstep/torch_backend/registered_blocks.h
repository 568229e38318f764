// Allocates blocks in registered memory, which grows by regions.
//
// In a forked child, private copies replace blocks in use: writes must not reach the parent and its
// peers (docs/internals/registered-memory.md).
//
// Thread safety: full.
// Blocking: take() and require(), while a region is allocated.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/tensor/registered_region.h"

namespace lockstep::torch_backend {

class RegisteredBlocks {
 public:
  // Errors: any lockstep::Error.
  using Source = std::function<RegisteredMemory(std::size_t bytes)>;

  // In bytes. A larger block is a region of its own.
  static constexpr std::size_t least_region = std::size_t{4} << 20;
  static constexpr std::size_t most_region = std::size_t{64} << 20;

  // Blocks in use stay valid.
  void open(Source source);

  void close();

  // False in a forked child, too.
  bool is_open() const;

  // Aligned to cache lines. Null if not open. If a new region is needed: null beyond `limit` bytes
  // of all regions, or once the host lacked memory.
  void* take(std::size_t bytes, std::size_t limit);

  // As take(), without a limit. Errors: misuse if not open; those of `source`.
  void* require(std::size_t bytes);

  // False if `data` is no block in use.
  bool give_back(void* data);

  // In a region of the current source.
  bool contains(const void* data) const;

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Block {
    std::shared_ptr<RegisteredRegion> region;
    std::size_t bytes;
  };

  struct Copy {
    const RegisteredMemory* region;
    void* data;
  };

  void* take_or_grow(std::size_t bytes, std::size_t limit);
  void* take_from_regions(std::size_t bytes);
  bool grow(std::size_t bytes, std::size_t limit);
  std::size_t next_region(std::size_t bytes) const;

  std::mutex growth_mutex_;  // Held, without mutex_, while a region is allocated.

  mutable std::mutex mutex_;  // Guards the members below, except the last two.
  std::shared_ptr<const Source> source_;
  std::vector<std::shared_ptr<RegisteredRegion>> regions_;
  std::size_t total_ = 0;          // Bytes of all regions.
  std::map<void*, Block> blocks_;  // Blocks in use, also of earlier sources.
  std::vector<Copy> copies_;
  std::atomic<bool> is_short_{false};  // Whether the host lacked memory.
  std::atomic<pid_t> owner_{0};        // The process that opened it; 0 if closed.
};

}  // namespace lockstep::torch_backend
