// Byte streams of messages between two ranks, over shared memory or connections.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::comm {

// Neither side blocks. Bounded: a full pipe takes no more bytes.
class Pipe {
 public:
  virtual ~Pipe() = default;

  // Returns the number of bytes that fit.
  virtual std::size_t write(const std::byte* data, std::size_t bytes) = 0;

  virtual std::size_t read(std::byte* data, std::size_t bytes) = 0;
  virtual std::size_t readable() const = 0;

  // Count messages that were started, and messages that a receive got. pending() is valid only once
  // all ranks have synchronized after their last message.
  virtual void count_sent() = 0;
  virtual void count_received() = 0;
  virtual std::size_t pending() const = 0;
};

// Thread safety: one thread at a time, except bell(), await(), has_left(), why_left(), is_aborted()
// and throw_if_over().
class Pipes {
 public:
  virtual ~Pipes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The pipe is made by the first call; its address never changes.
  virtual Pipe& to(int peer) = 0;

  // `peer` has left: frees the memory of its pipe.
  virtual void release(int /*peer*/) {}

  // Null until that rank has sent something; is_opening() while its pipe is in transit.
  virtual Pipe* from(int peer) = 0;
  virtual bool is_opening(int peer) const = 0;

  // Whether `peer` has left the group. Its pipe then contains all that it sent.
  virtual bool has_left(int peer) const = 0;

  // Why `peer` has left, if because another rank of this host had left; with job ranks.
  virtual std::optional<Failure> why_left(int peer) const = 0;

  // Notifies `peer` that its pipe to or from this rank has changed. With rank(), wakes threads of
  // this process.
  virtual void ring(int peer) = 0;

  // await() blocks until the bell differs from `seen`, at most about 20 ms. Throws like
  // throw_if_over() if the group has ended.
  virtual std::uint32_t bell() const = 0;
  virtual void await(std::uint32_t seen) = 0;

  // Whether the group was aborted. Very cheap.
  virtual bool is_aborted() const = 0;

  // Errors: peer_lost, and the error given to abort(). `context` begins the message.
  virtual void throw_if_over(const std::string& context) const = 0;
};

// The Error of a call that waits for `ranks`, which have left `group`. With `why`,
// Pipes::why_left() of the first of them, names the rank that left earlier.
Error error_of_the_left(const std::string& context, const std::vector<int>& ranks,
                        std::string_view group, const std::optional<Failure>& why,
                        std::source_location where = std::source_location::current());

// Returns a function to call repeatedly while `ranks` make group `made`. It throws when not all of
// them will come, and calls `watch`. `pipes`, of their current `group`, must outlive it.
std::function<void()> watch_the_making(const Pipes& pipes, std::string group, std::string made,
                                       std::vector<int> ranks, std::function<void()> watch);

class GroupAborted;

// For a group creation that ended with `error`; `watch` is from watch_the_making(). Throws a
// GroupAborted only if the parent group was aborted.
[[noreturn]] void throw_for_the_making(const GroupAborted& error,
                                       const std::function<void()>& watch);

}  // namespace lockstep::comm
