// Whether streams use a device's memory in an order that they keep, whatever time each takes.
//
// A stand-in runs every kernel at once, so its results are right though a stream forgot to wait for
// another. This finds such a stream in any run: two uses of the same bytes, one of them a write,
// are in order on one stream, after a wait for an event that came after the first use, or after a
// wait of the host. It also finds memory that is freed while a stream other than the one that it
// was allocated on may still use it: the CUDA allocator gives it away.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace lockstep::test {

class StreamOrder {
 public:
  using Memory = std::span<const std::byte>;
  using Moment =
      std::map<c10::StreamId, std::size_t>;  // How many uses of each stream lie before it.

  enum class Kind { read, write };

  void allocate(c10::StreamId stream, Memory memory);
  void use(c10::StreamId stream, Memory memory, Kind kind);

  // As at::Tensor::record_stream(): what frees the memory at `data` waits for the stream.
  void keep_for(c10::StreamId stream, const void* data);

  // Whether it was allocated here.
  bool free(const void* data);

  // As an event: what `stream` has done by now, and that it does nothing more before that is done.
  Moment record(c10::StreamId stream) { return now_of(stream); }
  void wait(c10::StreamId stream, const Moment& moment);

  // All streams wait, as the host enqueues nothing more before `moment`.
  void wait_on_host(const Moment& moment);
  void wait_on_host();

  // What was out of order, in words, since the last call.
  std::vector<std::string> take_faults();

 private:
  struct Use {
    c10::StreamId stream;
    std::size_t number;  // Of the uses by this stream.
    Memory memory;
    Kind kind;
  };
  struct Block {
    c10::StreamId stream;
    std::size_t bytes;
    std::set<c10::StreamId> kept_for = {};
    std::vector<Use> uses = {};
  };

  Moment& now_of(c10::StreamId stream);
  Block* block_of(const std::byte* data);
  bool has_seen(c10::StreamId stream, const Use& use);

  std::map<const std::byte*, Block> blocks_;
  std::map<c10::StreamId, Moment> now_;
  Moment host_;
  std::vector<std::string> faults_;
};

}  // namespace lockstep::test
