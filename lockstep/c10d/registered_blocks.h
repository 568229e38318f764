// Blocks for tensors in registered memory, which is allocated in regions as they are needed.
//
// A fork()ed child shares the memory that its parent has registered: what the child wrote would
// reach its parent, and its parent's peers. RegisteredBlocks therefore gives each child its own
// copy of all blocks in use, in the place of the shared ones. For the child they are ordinary
// memory, as they were at the fork. docs/internals/registered-memory.md has the reasons.
//
// Thread safety: any thread may call any member at any time.
// Blocking: take() and require() while a region is allocated; the other members never.

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

namespace lockstep::c10d {

class RegisteredBlocks {
 public:
  // Allocates registered memory. Errors: any lockstep::Error.
  using Source = std::function<RegisteredMemory(std::size_t bytes)>;

  // Bytes of the smallest and the largest region. A block that needs more is a region of its own.
  static constexpr std::size_t least_region = std::size_t{4} << 20;
  static constexpr std::size_t most_region = std::size_t{64} << 20;

  // Takes regions from `source` from now on, instead of an earlier one. Blocks in use stay.
  void open(Source source);

  // Gives no more blocks.
  void close();

  // False in a fork()ed child, too.
  bool is_open() const;

  // Returns a block, aligned to cache lines; null if `limit` bytes of regions have no room for it,
  // or if there is no more memory.
  void* take(std::size_t bytes, std::size_t limit);

  // Returns a block in any case. Errors: misuse when it is not open; those of `source`.
  void* require(std::size_t bytes);

  // False if `data` is no block in use.
  bool give_back(void* data);

  // Whether `data` lies in a region of the current source.
  bool contains(const void* data) const;

  // Handlers of fork(). The first two are called in the parent, on the thread that forks.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Block {
    std::shared_ptr<RegisteredRegion> region;
    std::size_t bytes;
  };

  // A copy of a region's blocks in use, for a child.
  struct Copy {
    const RegisteredMemory* region;
    void* data;
  };

  void* take_or_grow(std::size_t bytes, std::size_t limit);
  void* take_from_regions(std::size_t bytes);
  bool grow(std::size_t bytes, std::size_t limit);
  std::size_t next_region(std::size_t bytes) const;

  std::mutex growth_mutex_;  // One thread allocates a region at a time, without mutex_.

  mutable std::mutex mutex_;  // Guards the members below, but not the last two.
  std::shared_ptr<const Source> source_;
  std::vector<std::shared_ptr<RegisteredRegion>> regions_;
  std::size_t total_ = 0;          // Bytes of the regions.
  std::map<void*, Block> blocks_;  // Those in use, of earlier sources too.
  std::vector<Copy> copies_;
  std::atomic<bool> is_short_{false};  // The host had too little memory for another region.
  std::atomic<pid_t> owner_{0};        // The process in which it is open; 0 if it is not.
};

}  // namespace lockstep::c10d
