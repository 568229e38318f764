// Reads peers' unshared memory through the kernel: one copy, where staging buffers need two.
//
// The kernel may refuse: Yama, a seccomp profile, or a process that is not dumpable. Each rank
// therefore publishes a mark. A rank tries all peers before it reads from any, and every read also
// reads the mark again.
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

  // Publishes this rank's mark, unless `variable` is 0 now or these peers may not read. `group` is
  // its name. Call it before the group's first rendezvous. Errors: misuse for another value of
  // `variable`.
  PeerMemory(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether this rank can read every peer's memory. The first call tests it with a system call for
  // each peer, and logs the result.
  bool is_readable();

  // Makes is_readable() false from now on. Logs it, if it was true.
  void stop();

  // Copies from a rank's address `from`. False if the kernel refuses, or the rank or its memory
  // does not exist any more. `to` is then undefined.
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
