// Registered memory (docs/internals/registered-memory.md): where the parts of all ranks lie in this
// process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

struct Region {
  std::uint64_t number;  // Unique in the session.
  bool is_common;        // False for a rank's own.
  std::size_t bytes;
  std::vector<std::byte*> parts;    // By slot; null for a rank without a part.
  std::weak_ptr<const void> owner;  // Expires with this rank's last handle.
  SharedMemory kept = {};           // A peer's own region, mapped until the session ends.
};

// The regions that one rank has mapped in its session.
// Thread safety: any thread.
class RegionTable {
 public:
  using All = std::vector<Region>;

  RegionTable(int slot, int slots);

  int slot() const { return slot_; }
  int slots() const { return slots_; }

  std::uint64_t next_number();

  void add(Region region);

  // Increases with each new region.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::shared_ptr<const All> all() const;

  // Adds `slot`'s own region `number`, unless another thread has.
  void add_peers(std::uint64_t number, int slot, SharedMemory memory);

  static std::string key_of(std::uint64_t number);

 private:
  void add_locked(Region region);

  const int slot_;
  const int slots_;
  std::atomic<std::uint64_t> made_{0};
  std::atomic<std::uint64_t> version_{0};
  mutable std::mutex mutex_;  // Guards all_.
  std::shared_ptr<const All> all_ = std::make_shared<const All>();
};

// A group's view of its session's regions.
// Thread safety: one thread only.
class Regions {
 public:
  // address() waits at most `timeout` for another rank's memory, and meanwhile calls `watch`, which
  // may throw.
  Regions(std::shared_ptr<Peers> peers, std::chrono::milliseconds timeout,
          std::function<void(int rank)> watch);

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // Bytes of each part in a common region, and of all parts together.
  static std::size_t stride_of(std::size_t bytes);
  static std::size_t bytes_for(std::size_t bytes, int ranks);

  // Adds a common region in `memory`. All ranks pass the same number.
  RegisteredMemory add_common(std::uint64_t number, SharedMemory memory, std::size_t bytes);

  // The buffer's location, which ranks exchange: region, and offset in this rank's part. 0 for
  // unregistered memory, or after its last handle was destroyed.
  std::uint64_t locate(const Buffer& buffer);

  // A location of unregistered memory, for PeerMemory. 0 for a tagged pointer.
  static std::uint64_t outside(const Buffer& buffer);
  static bool is_outside(std::uint64_t location);
  static std::uint64_t address_outside(std::uint64_t location);

  // Equal on all ranks if they can work on these locations: all in one common region, each in its
  // rank's own region, or all unregistered. 0 for location 0.
  static std::uint64_t kind_of(std::uint64_t location);

  // The location's address in this process. Errors: system; timeout, with that rank; those of
  // `watch`.
  std::byte* address(std::uint64_t location, int rank);

 private:
  void refresh();
  std::byte* part_of(std::uint64_t number, int rank);

  const std::shared_ptr<Peers> peers_;
  std::chrono::milliseconds timeout_;
  const std::function<void(int rank)> watch_;
  RegionTable& table_;
  std::uint64_t version_ = 0;
  std::shared_ptr<const RegionTable::All> all_;
  std::vector<std::pair<std::uint64_t, std::byte*>> last_;  // By rank: number and its part.
};

// Allocates a region of this rank alone, from any thread. Errors: system for too little memory or
// too many open files.
RegisteredMemory allocate_own_region(Peers& peers, std::size_t bytes);

}  // namespace lockstep::comm
