// Reads the memory of peers that is not shared, through the kernel: one copy, where staging buffers
// need two.
//
// The kernel may refuse: Yama, a seccomp profile, or a process that is not dumpable. Each rank
// therefore gives its peers a mark. A rank reads from no peer before it has tried all of them, and
// with all that it reads it reads the mark again.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

class PeerMemory {
 public:
  // With 0, ranks do not read each other's memory; 1 is the default.
  static constexpr const char* variable = "LOCKSTEP_READ_PEERS";

  // Gives this rank's mark, unless `variable` is 0 now or these peers may not read. `group` is its
  // name. Call it before the group's first rendezvous. Errors: misuse for another value of
  // `variable`.
  PeerMemory(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether this rank can read every peer's memory. The first call tries it, with a system call for
  // each peer, and logs the answer.
  bool is_readable();

  // From now on is_readable() is false. Logs it, if it was true.
  void stop();

  // Copies from a rank's address `from`. False if the kernel refuses, if the rank has no such
  // memory, or if it is gone. `to` then holds anything.
  bool read(int rank, std::byte* to, std::uint64_t from, std::size_t bytes) const;

 private:
  bool can_read(int rank) const;
  void tell(const char* what) const;

  const std::shared_ptr<Peers> peers_;
  const GroupSegment& segment_;
  const std::string group_;
  const std::uint64_t number_;  // Peers read it here. No fork()ed rank has the same.
  std::optional<bool> is_readable_;
};

}  // namespace lockstep::comm
