// Registered memory: where the parts of all ranks lie in this process.
//
// Regions belong to a session, not to a group: all groups of a job on this host know them. There
// are two kinds. A common region has a part for each rank of the group that allocated it, and all
// of these ranks have mapped it. A rank's own region was allocated by this rank alone. Peers map it
// after their first collectives on it; as long as one of a group's ranks has not, or cannot, it is
// ordinary memory to the collectives of this group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

// The beginning of a rank's own region, in the memory that all ranks share which have mapped it.
class RegionHead {
 public:
  // Takes this many bytes, whole pages, for a session of `slots` ranks.
  static std::size_t bytes_for(int slots);

  explicit RegionHead(std::byte* memory)
      : words_(reinterpret_cast<std::atomic<std::uint64_t>*>(memory)) {}

  void note_mapped(int slot) const;
  bool is_mapped_by(int slot) const;

  // The rank has no handle of the region any more.
  void end() const { words_[0].store(1, std::memory_order_release); }
  bool has_ended() const { return words_[0].load(std::memory_order_acquire) != 0; }

 private:
  std::atomic<std::uint64_t>*
      words_;  // The first tells the end; the rest have a bit for each slot.
};

// One region as mapped in this process.
struct Region {
  std::uint64_t number;                 // Unique in the session.
  bool is_common;                       // Else it is a rank's own.
  std::size_t bytes;                    // Of each part.
  std::vector<std::byte*> parts;        // By slot; null for a rank without a part.
  std::weak_ptr<const void> owner;      // Expires with this rank's last handle.
  std::optional<RegionHead> head = {};  // Of a rank's own region.
  SharedMemory kept = {};               // A peer's own region, until that rank lets it go.
};

// The regions that one rank knows, for all groups of its session.
//
// Thread safety: any thread may call any member at any time.
class RegionTable {
 public:
  using All = std::vector<Region>;

  // This rank has `slot` of the session's `slots`.
  RegionTable(int slot, int slots);

  int slot() const { return slot_; }
  int slots() const { return slots_; }

  // Returns a number for a region that this rank makes.
  std::uint64_t next_number();

  void add(Region region);

  // Grows with each change.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::shared_ptr<const All> all() const;

  // Maps the region with this number, which `slot` made as its own, in several calls: it asks for
  // the memory, and maps it once it has come. Never blocks. A region that cannot be mapped is left
  // out, with a warning for the first one.
  void approach(std::uint64_t number, int slot, Peers& peers);

  // The key under which peers obtain the memory of a rank's own region.
  static std::string key_of(std::uint64_t number);

 private:
  // A peer's region that this rank has asked for.
  struct Asked {
    int slot = 0;
    bool has_failed = false;
  };

  bool knows(std::uint64_t number) const;
  void ask_for(std::uint64_t number, int slot, Peers& peers);
  void map_what_has_come(Peers& peers);
  SharedMemory poll(std::uint64_t number, Asked& asked, Peers& peers);
  void give_up(Asked& asked, const Error& error);
  void add_region_of(int slot, std::uint64_t number, SharedMemory memory);

  const int slot_;
  const int slots_;
  std::atomic<std::uint64_t> made_{0};
  std::atomic<std::uint64_t> version_{0};
  std::mutex mapping_;  // Guards the next two.
  std::map<std::uint64_t, Asked> asked_;
  bool has_warned_ = false;
  mutable std::mutex mutex_;  // Guards all_.
  std::shared_ptr<const All> all_ = std::make_shared<const All>();
};

// A group's view of its session's regions.
//
// Thread safety: one thread only.
class Regions {
 public:
  explicit Regions(std::shared_ptr<Peers> peers);

  // Returns the bytes of each part in a common region, and of all parts together.
  static std::size_t stride_of(std::size_t bytes);
  static std::size_t bytes_for(std::size_t bytes, int ranks);

  // Adds a common region of this group in `memory`. Ranks give it the same number.
  RegisteredMemory add_common(std::uint64_t number, SharedMemory memory, std::size_t bytes);

  // Returns a location that ranks exchange for a buffer: the region and the offset in its rank's
  // part. 0 for memory that is not registered, or whose last handle is gone.
  std::uint64_t locate(const Buffer& buffer);

  // Equal on all ranks if they can work on these locations: they lie in one common region, or each
  // in a rank's own that all ranks of the group have mapped. 0 for other memory.
  static std::uint64_t kind_of(std::uint64_t location);

  // Maps the region of `rank`'s location, as RegionTable::approach(), if it is not mapped by all.
  void approach(std::uint64_t location, int rank);

  // Returns the address of `rank`'s location in this process; it has a kind.
  std::byte* address(std::uint64_t location, int rank);

 private:
  void refresh();
  std::byte* part_of(std::uint64_t number, int rank);
  bool is_mapped_by_all(const RegionHead& head) const;

  const std::shared_ptr<Peers> peers_;
  RegionTable& table_;
  std::uint64_t version_ = 0;
  std::shared_ptr<const RegionTable::All> all_;
  std::vector<std::pair<std::uint64_t, std::byte*>> last_;  // By rank: number and its part.
};

// Allocates a region of this rank alone.
// Thread safety: any thread may call it. Errors: system when the host has too little memory.
RegisteredMemory allocate_own_region(const std::shared_ptr<Peers>& peers, std::size_t bytes);

}  // namespace lockstep::comm
