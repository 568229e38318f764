// The ranks of one group that can share memory: processes of one host (host_peers.h) or threads of
// one process (thread_peers.h).
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

// Initially zero, at least as large as requested. Mapped until the last copy is destroyed.
using SharedMemory = std::shared_ptr<std::byte>;

class RegionTable;

// A random number at an address of a process: no other process has it there.
struct Mark {
  std::uint64_t number = 0;
  std::uint64_t address = 0;
};

class Peers {
 public:
  virtual ~Peers() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A rank's index in the session, which all groups of the job on this host share.
  virtual int slot(int rank) const = 0;

  virtual RegionTable& regions() = 0;

  // Makes memory that the other ranks may fetch() under `key`, until withdraw(). Pages after the
  // first `reserved` bytes need reserve_pages(). Errors: system for too little memory or too many
  // open files.
  virtual SharedMemory offer(const std::string& key, std::size_t bytes, std::size_t reserved) = 0;

  // Makes fetch() fail with Error(system) and this reason.
  virtual void refuse(const std::string& key, std::string_view reason) = 0;

  virtual void withdraw(const std::string& key) noexcept = 0;

  // Like offer(), but only while the memory is mapped here, with all pages reserved.
  virtual SharedMemory hand_out(const std::string& key, std::size_t bytes) = 0;

  // Blocks until `rank` has offered or handed out `key`. Calls `check`, which may throw, at least
  // every 20 ms, even after that process has ended. Errors: timeout, with that rank; system for its
  // refusal or too many open files.
  virtual SharedMemory fetch(int rank, const std::string& key, std::size_t bytes, Deadline deadline,
                             const std::function<void()>& check) = 0;

  // Makes memory for `rank`, which may take it even after this process has ended. Errors: as
  // offer().
  virtual SharedMemory deliver(int rank, const std::string& key, std::size_t bytes) = 0;

  // Another rank's delivery under `key`; null until it arrives. Errors: system for too many open
  // files.
  virtual SharedMemory take(const std::string& key, std::size_t bytes) = 0;

  // Releases another rank's delivery, whether it has arrived or not.
  virtual void drop(const std::string& key) noexcept = 0;

  virtual Activity& activity(int rank) = 0;

  // Whether read() may be tried. False where reading unmapped memory would be a fault.
  virtual bool may_read() const = 0;

  // Copies from address `from` in the process of `rank`. False if the kernel refuses, the memory
  // does not exist or lacks `mark`, or the rank has ended. `to` is then undefined.
  virtual bool read(int rank, const Mark& mark, std::byte* to, std::uint64_t from,
                    std::size_t bytes) = 0;

  // Throws Error(peer_lost) when a rank of the job was lost; `context` begins the message. Do not
  // call it in a spin loop.
  virtual void throw_if_lost(std::string_view context) = 0;

  // A rank's number in the whole group, for messages.
  virtual int number(int rank) const { return rank; }

  // Whether the group has more ranks, reachable by connections only.
  virtual bool is_part_of_group() const { return false; }

  // As Pipes::why_left().
  virtual std::optional<Failure> why_left(int rank) = 0;

  // Such as "rank 1 (pid 4242), in all_reduce #8 of group world for 3 s".
  virtual std::string describe(int rank) = 0;

  // Such as "STOPPED (T): kill -CONT lets it go on"; nothing while the process runs or is dead.
  virtual std::optional<std::string> stall_of(int rank) = 0;

  // The peers of a group of some of these ranks, including this one.
  virtual std::shared_ptr<Peers> among(const std::vector<int>& ranks) = 0;
};

}  // namespace lockstep::comm
