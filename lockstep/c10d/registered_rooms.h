// Rooms for tensors in registered memory, which is allocated in pieces as they are needed.
//
// A fork()ed child shares the memory that its parent has registered: what the child wrote would
// reach its parent, and its parent's peers. RegisteredRooms therefore gives each child its own copy
// of all rooms in use, in the place of the shared ones. For the child they are ordinary memory, as
// they were at the fork. docs/internals/registered-memory.md has the reasons.
//
// Thread safety: any thread may call any member at any time.

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

class RegisteredRooms {
 public:
  // Allocates registered memory. Errors: any lockstep::Error.
  using Source = std::function<RegisteredMemory(std::size_t bytes)>;

  // Bytes of the smallest and the largest piece. A room that needs more is a piece of its own.
  static constexpr std::size_t least_piece = std::size_t{4} << 20;
  static constexpr std::size_t most_piece = std::size_t{64} << 20;

  // Takes pieces from `source` from now on, instead of an earlier one. Rooms in use stay.
  void open(Source source);

  // Gives no more rooms.
  void close();

  // False in a fork()ed child, too.
  bool is_open() const;

  // Returns a room, aligned to cache lines; null if `limit` bytes of pieces have no room for it, or
  // if there is no more memory.
  void* take(std::size_t bytes, std::size_t limit);

  // Returns a room in any case. Errors: misuse when it is not open; those of `source`.
  void* require(std::size_t bytes);

  // False if `data` is no room in use.
  bool give_back(void* data);

  // Whether `data` lies in a piece of the current source.
  bool contains(const void* data) const;

  // Handlers of fork(). The first two are called in the parent, on the thread that forks.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Room {
    std::shared_ptr<RegisteredRegion> piece;
    std::size_t bytes;
  };

  // A copy of a piece's rooms in use, for a child.
  struct Copy {
    const RegisteredMemory* piece;
    void* data;
  };

  void* take_from_pieces(std::size_t bytes);
  void grow(std::size_t bytes);
  std::size_t next_piece(std::size_t bytes) const;

  mutable std::mutex mutex_;  // Guards all but owner_.
  Source source_;
  std::vector<std::shared_ptr<RegisteredRegion>> pieces_;
  std::size_t total_ = 0;        // Bytes of the pieces.
  bool is_short_ = false;        // The host had too little memory for another piece.
  std::map<void*, Room> rooms_;  // Those in use, of earlier sources too.
  std::vector<Copy> copies_;
  std::atomic<pid_t> owner_{0};  // The process in which it is open; 0 if it is not.
};

}  // namespace lockstep::c10d
