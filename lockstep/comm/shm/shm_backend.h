// Collectives of the ranks of one host through memory that all of them have mapped.
//
// On registered memory nothing is copied: each rank reduces its slice of everybody's buffers in
// place. Any other memory passes through staging buffers that stay in cache. Which way is taken
// is decided by all ranks alike, from what each says of its buffer on entry.
//
// Operations: all, on CPU buffers; reductions as reduce_function() has them.
// Waiting: spins for some tens of microseconds when there is a core for every rank, then sleeps; each
// sleep ends within 20 ms to look for lost peers and at the deadline.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/host/host_session.h"
#include "lockstep/comm/shm/group_segment.h"

namespace lockstep {

class ShmBackend final : public Backend {
 public:
  // Collective over all ranks of `session`. `group` names the group, the same on all ranks.
  ShmBackend(std::shared_ptr<HostSession> session, std::string group, Deadline deadline);

  std::string_view name() const override { return "shm"; }
  bool reduces(DType dtype, ReduceOp op) const override;
  void all_reduce(const Buffer& data, const Call& call) override;
  void broadcast(const Buffer& data, const Call& call) override;
  void all_gather(const Buffer& input, const Buffer& output, const Call& call) override;
  void barrier(const Call& call) override;
  RegisteredMemory allocate(const Call& call) override;
  void cancel() override { cancelled_ = true; }

 private:
  struct Region;      // One registered allocation, as this process has it mapped.
  struct Whereabout;  // Where in which region a buffer lies.
  enum class Path { registered, staged };

  int rank() const { return session_->rank(); }
  int size() const { return session_->size(); }

  SharedMapping share(const std::string& key, std::size_t bytes, Deadline deadline);
  bool enough_cores() const;

  Whereabout locate(const Buffer& buffer) const;
  Path enter(const Call& call, std::uint64_t location);
  void compare_signatures(const Call& call) const;
  void step(const Call& call);
  void raise(Flag& flag, std::uint32_t value) const;
  void await(Flag& flag, std::uint32_t target, int peer, const Call& call) const;
  void await_asleep(Flag& flag, std::uint32_t target, int peer, const Call& call) const;
  [[noreturn]] void throw_timeout(int peer, const Call& call) const;
  std::string context(const Call& call) const;

  template <class PartOf>
  void reduce_slice(PartOf part_of, std::size_t count, const Call& call);
  // Moves `bytes` through the staging buffers in chunks: put(to, begin, size) fills this rank's
  // half before all ranks meet, take(half, begin, size) reads anybody's after.
  template <class Put, class Take>
  void relay(std::size_t bytes, const Call& call, Put put, Take take);

  const std::shared_ptr<HostSession> session_;
  const std::string group_;
  const GroupSegment segment_;
  std::vector<std::byte*> parts_;  // Scratch of reduce_slice(), one for each rank.
  std::atomic<bool> cancelled_{false};
  int spins_ = 0;
  std::uint32_t steps_ = 0;
  std::uint32_t regions_made_ = 0;
  std::map<const std::byte*, std::weak_ptr<Region>> regions_;  // By the begin of this rank's part.
};

}  // namespace lockstep
