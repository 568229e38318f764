// The ranks of one group that can share memory: processes of one host (host_peers.h) or threads of
// one process (thread_peers.h).
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/job/activity.h"

namespace lockstep {

// Zero at first, and as large as was asked for; stays mapped until the last copy is gone.
using SharedMemory = std::shared_ptr<std::byte>;

class Peers {
 public:
  virtual ~Peers() = default;

  // In this group, not in the job.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Makes memory that `readers` others may obtain() under `key`. Errors: system when there is too
  // little.
  virtual SharedMemory offer(const std::string& key, std::size_t bytes, int readers) = 0;

  // Lets those obtain() fail with Error(system) and this reason instead.
  virtual void refuse(const std::string& key, int readers, std::string_view reason) = 0;

  // Blocks until somebody has offered `key`, with at least `bytes` bytes. `give_up` is called every
  // 20 ms and may throw.
  virtual SharedMemory obtain(const std::string& key, std::size_t bytes, Deadline deadline,
                              const std::function<void()>& give_up) = 0;

  // The same in two steps that do not block: null as long as it has not come. Of what was refused,
  // Error(system).
  virtual void request(const std::string& key) = 0;
  virtual SharedMemory poll(const std::string& key, std::size_t bytes) = 0;

  virtual Activity& activity(int rank) = 0;

  // Throws Error(peer_lost) when a rank of the job was lost; `context` begins its message. For the
  // slow path of a wait, not for a spin.
  virtual void throw_if_lost(std::string_view context) = 0;

  // What messages call a rank: as the group does, also where these are the part of it on this host.
  virtual int number(int rank) const { return rank; }

  // Who and where a rank is, such as "rank 1 (pid 4242), in all_reduce #8 of group world for 3 s".
  virtual std::string describe(int rank) = 0;

  // Such as "stopped (T)" when the rank is there but has not run for two seconds.
  virtual std::optional<std::string> stall_of(int rank) = 0;

  // The same for a group of some of these ranks, of which this must be one.
  virtual std::shared_ptr<Peers> among(const std::vector<int>& ranks) = 0;

  // The job has ended in order: leaving is not a failure any more.
  virtual void finish() = 0;

  // This rank will call nothing more: from now on throw_if_lost() throws on all others.
  virtual void abandon() = 0;
};

}  // namespace lockstep
