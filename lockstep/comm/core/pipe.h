// A byte stream of messages from one rank to another, over shared memory or a connection between
// hosts.

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

// The sender writes, the receiver reads; neither blocks. Bounded: a full pipe takes no more bytes.
class Pipe {
 public:
  virtual ~Pipe() = default;

  // Writes as many bytes as fit; returns their number.
  virtual std::size_t write(const std::byte* data, std::size_t bytes) = 0;

  // Reads all available bytes that fit; returns their number.
  virtual std::size_t read(std::byte* data, std::size_t bytes) = 0;
  virtual std::size_t readable() const = 0;

  // Count messages that were started, and messages given to a receive. pending() is valid only once
  // all ranks have synchronized after their last message.
  virtual void count_sent() = 0;
  virtual void count_received() = 0;
  virtual std::size_t pending() const = 0;
};

// The pipes between this rank and the others of one group.
//
// Thread safety: one thread at a time, except bell(), await(), has_left(), why_left(),
// is_aborted() and throw_if_over().
class Pipes {
 public:
  virtual ~Pipes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Creates the pipe at the first call; its address never changes.
  virtual Pipe& to(int peer) = 0;

  // Frees the memory of that pipe, because `peer` has left and will not read it.
  virtual void release(int /*peer*/) {}

  // Null until that rank has sent something; is_opening() while its pipe is in transit.
  virtual Pipe* from(int peer) = 0;
  virtual bool is_opening(int peer) const = 0;

  // Whether that rank has left the group. Its pipe then contains all that it sent.
  virtual bool has_left(int peer) const = 0;

  // Why that rank has left, if it left because another rank of this host had left; with job ranks.
  virtual std::optional<Failure> why_left(int peer) const = 0;

  // Notifies `peer` that its pipe to or from this rank has changed. With rank(), wakes other
  // threads of this process.
  virtual void ring(int peer) = 0;

  // await() blocks until the bell differs from `seen`, at most about 20 ms. Then throws like
  // throw_if_over() if the group has ended.
  virtual std::uint32_t bell() const = 0;
  virtual void await(std::uint32_t seen) = 0;

  // Whether throw_if_over() would throw the error given to abort(). Very cheap.
  virtual bool is_aborted() const = 0;

  // Errors: peer_lost, and the error given to abort(). `context` begins the message.
  virtual void throw_if_over(const std::string& context) const = 0;
};

// Returns the Error of a call that waits for `ranks`, which have left `group`. `why` is why the
// first of them left (Pipes::why_left()): the Error then names the rank that left earlier.
Error error_of_the_left(const std::string& context, const std::vector<int>& ranks,
                        std::string_view group, const std::optional<Failure>& why,
                        std::source_location where = std::source_location::current());

// Returns a function that throws when not all of `ranks`, which make group `made`, will come.
// Called repeatedly while one of them waits. `pipes` belong to their current group `group`, and
// must outlive it. It also calls `watch`.
std::function<void()> watch_the_making(const Pipes& pipes, std::string group, std::string made,
                                       std::vector<int> ranks, std::function<void()> watch);

class GroupAborted;

// Throws the Error of a group creation that ended with `error`; `watch` is from watch_the_making().
// It is a GroupAborted only if the parent group was aborted.
[[noreturn]] void throw_for_the_making(const GroupAborted& error,
                                       const std::function<void()>& watch);

}  // namespace lockstep::comm
