// Checks that streams order all uses of a device's memory, independently of timing.
//
// A simulated device runs every kernel at once, so results are right even if a stream forgot to
// wait. This class finds the missing wait in any run. Two uses of the same bytes, one of them a
// write, must be on one stream, or be separated by a wait for an event after the first use, or by a
// wait of the host. It also finds memory that is freed while another stream than its own may still
// use it: the CUDA allocator reuses such memory.
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
  using Moment = std::map<c10::StreamId, std::size_t>;  // Number of preceding uses, by stream.

  enum class Kind { read, write };

  void allocate(c10::StreamId stream, Memory memory);
  void use(c10::StreamId stream, Memory memory, Kind kind);

  // As at::Tensor::record_stream(): freeing the memory at `data` waits for the stream.
  void keep_for(c10::StreamId stream, const void* data);

  // Returns whether the memory was allocated here.
  bool free(const void* data);

  // As recording an event: all work of `stream` up to now.
  Moment record(c10::StreamId stream) { return now_of(stream); }
  void wait(c10::StreamId stream, const Moment& moment);

  // All streams wait, because the host enqueues nothing more before `moment`.
  void wait_on_host(const Moment& moment);
  void wait_on_host();

  // Descriptions of unordered uses since the last call.
  std::vector<std::string> take_faults();

 private:
  struct Use {
    c10::StreamId stream;
    std::size_t number;  // Number among the uses by this stream.
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
