// Reads peers' unshared memory through the kernel: a single copy, where staging buffers need two.
//
// The kernel may refuse, so a rank tries all peers first (docs/algorithms.md).
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
  // 0: ranks do not read each other's memory; 1 is the default.
  static constexpr const char* variable = "LOCKSTEP_READ_PEERS";

  // Publishes this rank's mark, unless `variable` is 0 or peers may not read. Call it before the
  // group's first rendezvous. Errors: misuse for another value of `variable`.
  PeerMemory(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether this rank can read every peer's memory. The first call tries each peer and logs the
  // result.
  bool is_readable();

  // Makes is_readable() false from now on.
  void stop();

  // As Peers::read().
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
