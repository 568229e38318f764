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

// The ends of a pipe. Neither blocks: a full pipe takes no more bytes.
class PipeWriter {
 public:
  virtual ~PipeWriter() = default;

  // Returns the number of bytes that fit.
  virtual std::size_t write(const std::byte* data, std::size_t bytes) = 0;

  virtual void count_sent() = 0;

  // Messages sent but not received. Valid only once all ranks have synchronized after their last
  // message.
  virtual std::size_t pending() const = 0;
};

class PipeReader {
 public:
  virtual ~PipeReader() = default;

  virtual std::size_t read(std::byte* data, std::size_t bytes) = 0;
  virtual std::size_t readable() const = 0;

  // Counts a message that a receive took.
  virtual void count_received() = 0;

  // As PipeWriter::pending().
  virtual std::size_t pending() const = 0;
};

// Thread safety: one thread at a time, except bell(), await(), has_left(), why_left(), is_aborted()
// and throw_if_over().
class Pipes {
 public:
  virtual ~Pipes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Made by the first call; its address never changes.
  virtual PipeWriter& to(int peer) = 0;

  // Frees the pipe's memory after `peer` has left.
  virtual void release(int /*peer*/) {}

  // Null until `peer` has sent something and its pipe is open; in between, is_opening() is true.
  virtual PipeReader* from(int peer) = 0;
  virtual bool is_opening(int peer) const = 0;

  // Whether `peer` has left. Its pipe then contains all that it sent.
  virtual bool has_left(int peer) const = 0;

  // If `peer` left because another rank of this host had left: that rank's Failure, by job rank.
  virtual std::optional<Failure> why_left(int peer) const = 0;

  // Notifies `peer` that its pipe to or from this rank has changed. With rank(), wakes this
  // process's threads.
  virtual void ring(int peer) = 0;

  // await() blocks until the bell differs from `seen`, at most about 20 ms. Errors: as
  // throw_if_over().
  virtual std::uint32_t bell() const = 0;
  virtual void await(std::uint32_t seen) = 0;

  // Whether the group was aborted. Very cheap.
  virtual bool is_aborted() const = 0;

  // Errors: peer_lost, and the error given to abort(). `context` begins the message.
  virtual void throw_if_over(const std::string& context) const = 0;
};

// The Error of a call that waits for `ranks`, which have left `group`. `why`, Pipes::why_left() of
// the first of them, names the rank that left earlier.
Error error_of_the_left(const std::string& context, const std::vector<int>& ranks,
                        std::string_view group, const std::optional<Failure>& why,
                        std::source_location where = std::source_location::current());

// Returns a function to call repeatedly while `ranks` make group `made`. It calls `watch`, and
// throws when some of `ranks` will not come. `pipes`, of their current `group`, must outlive it.
std::function<void()> watch_the_making(const Pipes& pipes, std::string group, std::string made,
                                       std::vector<int> ranks, std::function<void()> watch);

class GroupAborted;

// After `error` ended a group creation, throws the Error of `watch`, from watch_the_making(), or
// else a plain copy of `error`. Throws a GroupAborted only if the parent group was aborted.
[[noreturn]] void throw_for_the_making(const GroupAborted& error,
                                       const std::function<void()>& watch);

}  // namespace lockstep::comm
