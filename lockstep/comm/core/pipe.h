// A stream of bytes from one rank to another, in which messages go one after the other, and what a
// mailbox needs of whatever has such pipes: memory that ranks share, or lines between hosts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

// Its sender writes, its receiver reads; neither ever blocks. Bounded: a sender that nobody reads
// from comes to a stop.
class Pipe {
 public:
  virtual ~Pipe() = default;

  // As much as there is room for; how many bytes that was.
  virtual std::size_t write(const std::byte* data, std::size_t bytes) = 0;

  // As much as is there.
  virtual std::size_t read(std::byte* data, std::size_t bytes) = 0;
  virtual std::size_t readable() const = 0;

  // Messages that were begun, and that were given to a receive. What pending() says is asked for
  // only when all ranks have met after their last message.
  virtual void count_sent() = 0;
  virtual void count_received() = 0;
  virtual std::size_t pending() const = 0;
};

// The pipes between this rank and the others of one group.
//
// Thread safety: one thread at a time, but for bell(), await(), is_given_up() and
// throw_if_over().
class Pipes {
 public:
  virtual ~Pipes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Made at the first call; stays where it is.
  virtual Pipe& to(int peer) = 0;

  // Null as long as that rank has not sent anything.
  virtual Pipe* from(int peer) = 0;

  // Tells `peer` that its pipe to or from this rank has changed; with rank() itself, other threads
  // of this process.
  virtual void ring(int peer) = 0;

  // Blocks until the bell is no longer `seen`, or some 20 ms have passed; then throws when nothing
  // more will come, as throw_if_over() does.
  virtual std::uint32_t bell() const = 0;
  virtual void await(std::uint32_t seen) = 0;

  // Whether throw_if_over() would throw what give_up() was told; costs nothing.
  virtual bool is_given_up() const = 0;

  // Errors: peer_lost, and what give_up() was told. `context` begins the message.
  virtual void throw_if_over(const std::string& context) const = 0;
};

}  // namespace lockstep
