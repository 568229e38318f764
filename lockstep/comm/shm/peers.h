// The ranks of one group that can share memory: processes of one host (host_peers.h) or threads of
// one process (thread_peers.h).
//
// Thread safety: any thread may call any member at any time.

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

// Initially zero, at least as large as requested. Stays mapped until the last copy is destroyed.
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

  // Rank in this group, not in the job.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A rank's index in the session, which all groups of the job on this host share.
  virtual int slot(int rank) const = 0;

  // The registered memory that this rank has mapped in the session.
  virtual RegionTable& regions() = 0;

  // Makes memory that the other ranks may fetch() from this one under `key`, until withdraw().
  // Pages after the first `reserved` bytes need reserve_pages() before their first use. Errors:
  // system when there is too little memory, or this process has too many open files.
  virtual SharedMemory offer(const std::string& key, std::size_t bytes, std::size_t reserved) = 0;

  // Makes their fetch() fail with Error(system) and this reason.
  virtual void refuse(const std::string& key, std::string_view reason) = 0;

  // Withdraws offer() or refuse().
  virtual void withdraw(const std::string& key) noexcept = 0;

  // Like offer(), but valid while the memory is mapped here, with all pages reserved.
  virtual SharedMemory hand_out(const std::string& key, std::size_t bytes) = 0;

  // Blocks until `rank` has offered `key` or handed it out, with at least `bytes` bytes. `check`
  // is called every 20 ms, also after that rank's process has ended, and may throw. Errors:
  // timeout, with that rank; system when it has refused.
  virtual SharedMemory fetch(int rank, const std::string& key, std::size_t bytes, Deadline deadline,
                             const std::function<void()>& check) = 0;

  // Makes memory for `rank`, which may take it at any time, even after this rank has left or its
  // process has ended. Errors: as offer().
  virtual SharedMemory deliver(int rank, const std::string& key, std::size_t bytes) = 0;

  // Returns the memory that another rank has delivered under `key`; null until it arrives. Errors:
  // system when this process has too many open files.
  virtual SharedMemory take(const std::string& key, std::size_t bytes) = 0;

  // Releases another rank's delivery under `key`, whether it has arrived or not.
  virtual void drop(const std::string& key) noexcept = 0;

  virtual Activity& activity(int rank) = 0;

  // Whether read() may be tried. False where reading unmapped memory would be a fault.
  virtual bool may_read() const = 0;

  // Copies from a rank's own memory, at its address `from`. False if the kernel refuses, the memory
  // does not exist or does not have `mark`, or the rank has ended. `to` is then undefined.
  virtual bool read(int rank, const Mark& mark, std::byte* to, std::uint64_t from,
                    std::size_t bytes) = 0;

  // Throws Error(peer_lost) when a rank of the job was lost; `context` begins its message. Call it
  // in a wait's slow path, not in a spin loop.
  virtual void throw_if_lost(std::string_view context) = 0;

  // A rank's number in messages: that of the whole group, even if these are only its ranks on this
  // host.
  virtual int number(int rank) const { return rank; }

  // Whether the group has more ranks, reachable by connections only.
  virtual bool is_part_of_group() const { return false; }

  // Why `rank` has left, if it left because another rank had left; with job ranks.
  virtual std::optional<Failure> why_left(int rank) = 0;

  // Describes a rank: "rank 1 (pid 4242), in all_reduce #8 of group world for 3 s".
  virtual std::string describe(int rank) = 0;

  // Returns text such as "stopped (T)" when the process exists but has not run for two seconds.
  virtual std::optional<std::string> stall_of(int rank) = 0;

  // Makes the peers of a group of some of these ranks; this rank must be one of them.
  virtual std::shared_ptr<Peers> among(const std::vector<int>& ranks) = 0;

  // The job has ended in order: leaving is no failure from now on.
  virtual void finish() = 0;

  // This rank makes no more calls: from now on throw_if_lost() throws on all others.
  virtual void abandon() = 0;
};

}  // namespace lockstep::comm
