// The interface of a backend, which moves bytes between the ranks of one group.
//
// The caller guarantees that collectives come one at a time, in the same order on all ranks, with
// arguments that are valid on this rank. Another thread may move messages meanwhile.
//
// Blocking: enter(), run() and allocate(), until this rank's memory may be reused.
// Errors: peer_lost; timeout, with every absent rank; the reason that any rank gave to abort().
// After any of them the group is broken and only abort() may be called.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

// A collective as this rank entered it. Its parts lie in rank order, without gaps. Data by
// operation:
//   all_reduce, broadcast, reduce   `output`, in place.
//   all_gather, gather              Part r of `output` (gather: the root's) is rank r's `input`.
//   scatter                         `output` is part rank() of the root's `input`.
//   reduce_scatter                  `output` is part rank() of all ranks' `input`, combined.
//   all_to_all                      Part r of `output` is part rank() of rank r's `input`.
struct Collective {
  Signature signature;
  std::uint64_t sequence = 0;                           // Counts the group's operations from 1.
  std::chrono::milliseconds timeout = default_timeout;  // Starts at the first wait for a rank.
  Buffer input = {};
  Buffer output = {};

  // Elements of each rank's part; for all_to_all, counts[s * size + d] go from rank s to rank d.
  // signature.count is their sum; without counts, the size of every part.
  std::span<const std::size_t> counts = {};

  // The text of signature.label, cut to most_carried_label_bytes.
  std::string_view label = {};

  // Only compares all ranks' calls: there are no buffers, and no run() follows.
  bool only_says = false;
};

// One end of a message. Ends match by rank and tag, in posting order.
struct Message {
  Operation operation = Operation::send;  // Or recv.
  Buffer buffer = {};
  int peer = 0;          // Receiver or sender. A match replaces any_source.
  std::int64_t tag = 0;  // Not negative. A receive may have any_tag.
  std::exception_ptr error = {};
  bool peer_left = false;             // The reason for `error`, which affects no other message.
  std::atomic<bool> complete{false};  // Once set, no member changes.
};

// Begins error messages: "all_reduce #812 of group world on rank 3". abort_reason.h takes the part
// before " on rank ".
std::string describe_call(const Collective& collective, std::string_view group, int rank);
std::string describe_message(const Message& message, std::string_view group, int rank);

inline bool is_on_device(const Collective& collective) {
  return collective.output.device != DeviceKind::cpu || collective.input.device != DeviceKind::cpu;
}

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // This rank among the group's ranks on this host.
  struct Place {
    int rank = 0;
    int size = 1;
  };
  virtual Place local() const = 0;

  // Whether run() does this operation itself: always for all_gather and all_to_all, from which
  // others are composed. `op` only matters for reductions.
  virtual bool native(Operation operation, DType dtype, ReduceOp op) const = 0;

  // Why run() cannot do `collective`, which has a buffer in device memory; empty if it can. Called
  // on this rank alone, from any thread.
  virtual std::string refusal_on_device(const Collective&) {
    return "this group moves CPU memory only";
  }

  // Blocks until all ranks have entered a collective. Writes no user memory.
  virtual void enter(const Collective& collective) = 0;

  // The last rank to enter, if this rank waited for it.
  virtual std::optional<int> last_to_enter() const { return std::nullopt; }

  virtual const Signature& entered(int rank) const = 0;

  // Each rank's label for `collective`, in which the calls differ. All ranks call it instead of
  // run(). Blocking, Errors: as enter().
  virtual std::vector<std::string> labels(const Collective& collective) = 0;

  // Completes the collective that was entered last.
  virtual void run(const Collective& collective) = 0;

  // After enter(): allocates signature.count bytes, per rank with allocate, per host with
  // allocate_shared. With too little memory, no rank gets any, all get the same `refusal`, and the
  // group stays usable.
  struct Allocation {
    RegisteredMemory memory;
    std::string refusal;
  };
  virtual Allocation allocate(const Collective& collective) = 0;

  // Allocates registered memory for this rank alone, from any thread at any time. Errors: system
  // when there is too little.
  virtual RegisteredMemory allocate_local(std::size_t bytes) = 0;

  // Starts to send or receive `message`, which must not change until it is complete. Its errors are
  // in its `error`.
  virtual void post(std::shared_ptr<Message> message) = 0;

  // Moves all posted messages as far as possible without waiting. Errors: corrupt, and those of
  // await_messages().
  virtual void progress() = 0;

  // Drops all posted messages: their buffers are no longer accessed.
  virtual void drop_messages() = 0;

  // Messages from or to this rank that were sent but not received.
  virtual std::size_t messages_pending() const = 0;

  // await_messages() blocks until the bell differs from `seen`, at most about 20 ms. Errors:
  // peer_lost, and the reason given to abort(). Any thread may call these two at any time.
  virtual std::uint32_t message_bell() const = 0;
  virtual void await_messages(std::uint32_t seen) = 0;

  // A backend of the same kind for a group of `ranks`. Only these ranks call it, and it blocks
  // until all of them have. Any thread may call it at any time. `watch` is called meanwhile, and
  // may throw. Errors: also peer_lost, when one of `ranks` has left this group; GroupAborted. After
  // an Error on any rank, no rank gets a working group, and `group` is never reused.
  virtual std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                         std::chrono::milliseconds timeout,
                                         const std::function<void()>& watch) = 0;

  // This rank makes no more calls: ranks that wait for it get an Error(peer_lost) with its number.
  // Called once, when no collective is running.
  virtual void leave() = 0;

  // Running and later calls on all ranks throw a GroupAborted at their next wait. Any thread may
  // call it at any time.
  virtual void abort(const AbortReason& why) = 0;
};

}  // namespace lockstep::comm
