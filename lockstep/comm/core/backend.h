// The interface of a backend: a way of moving bytes between the ranks of one group.
//
// The code above it serves all backends: argument checks (comm/collective_calls.h), the numbering
// and comparison of calls and the operations that a backend does not do itself
// (comm/group/group_collectives.h), asynchronous calls and the flight recorder. A backend may rely
// on it that collectives come one at a time, in the same order on all ranks, with arguments that
// are valid on this rank; messages may come at the same time from another thread, also one at a
// time.
//
// Blocking: enter(), run() and allocate(), until this rank's part is complete and its memory may be
// used. Their Errors: peer_lost; timeout after the collective's time, which names every rank that
// did not come; what give_up() was told on any rank. After any of them the group is broken and
// nothing but give_up() is called.

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
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/given_up.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

// A collective as this rank entered it. What it reads and writes, by operation:
//   all_reduce, broadcast, reduce   `output`, in place
//   all_gather, gather              part r of `output` (the root's, for gather) is rank r's `input`
//   scatter                         `output` is part rank() of the root's `input`
//   reduce_scatter                  `output` is part rank() of all ranks' `input`, combined
//   all_to_all                      part r of `output` is part rank() of rank r's `input`
// Parts lie in the order of the ranks, without gaps.
struct Collective {
  Signature signature;
  std::uint64_t sequence = 0;                           // Counts the group's operations from 1.
  std::chrono::milliseconds timeout = default_timeout;  // From the first wait for a rank on.
  Buffer input = {};
  Buffer output = {};

  // Elements of each part, one for each rank; of all_to_all, counts[s * size + d] from rank s to
  // rank d. Empty when all parts are equal, of signature.count elements; else that is their sum.
  std::span<const std::size_t> counts = {};

  // The caller's, cut to most_carried_label_bytes: the text of signature.label.
  std::string_view label = {};

  // Entered only to learn what all ranks say: there are no buffers, and no run() follows.
  bool only_says = false;
};

// One end of a message, as a rank posted it. Ends match by rank and tag, in the order of posting.
struct Message {
  Operation operation = Operation::send;  // Or recv.
  Buffer buffer = {};
  int peer = 0;          // Receiver, or sender. A receive may have any_source; the match replaces
                         // it.
  std::int64_t tag = 0;  // Not negative. A receive may have any_tag.
  std::exception_ptr error = {};
  bool peer_left = false;  // The reason for `error`, which then concerns no other message.
  std::atomic<bool> complete{false};  // Once set, no member changes any more.
};

// The beginnings of messages about a call by `rank` of `group`, such as "all_reduce #812 of group
// world on rank 3" and "recv of 8 float32 from rank 1 with any tag in group world on rank 3".
// given_up.h takes the part before " on rank ".
std::string describe_call(const Collective& collective, std::string_view group, int rank);
std::string describe_message(const Message& message, std::string_view group, int rank);

inline bool is_on_device(const Collective& collective) {
  return collective.output.device != DeviceKind::cpu || collective.input.device != DeviceKind::cpu;
}

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // This rank among those of the group that share its host.
  struct Place {
    int rank = 0;
    int size = 1;
  };
  virtual Place local() const = 0;

  // Whether run() does this itself. True for all_gather and all_to_all of every type: ProcessGroup
  // composes all others from them. False for an operation that run() does not list. `op` matters to
  // reductions only.
  virtual bool native(Operation operation, DType dtype, ReduceOp op) const = 0;

  // Why it cannot do `collective`, of which a buffer is in a device's memory; empty when run() does
  // it, whatever native() says. Asked on this rank alone, from any thread, before it is entered.
  virtual std::string refusal_on_device(const Collective&) {
    return "this group moves CPU memory only";
  }

  // Begins `collective`: blocks until all ranks have entered one, and writes to no user's memory.
  virtual void enter(const Collective& collective) = 0;

  // The rank that came last to the collective, if this one has waited for it.
  virtual std::optional<int> last_to_enter() const { return std::nullopt; }

  // The signature with which `rank` has entered the collective.
  virtual const Signature& entered(int rank) const = 0;

  // Each rank's label for `collective`, which all have entered and in which they differ. All of
  // them call this instead of run(), as all see that they differ. Blocking, Errors: as enter().
  virtual std::vector<std::string> labels(const Collective& collective) = 0;

  // Completes the collective that was entered last.
  virtual void run(const Collective& collective) = 0;

  // Memory of signature.count bytes after enter(): of allocate for every rank, of allocate_shared
  // for all ranks of the host together. When there is too little, no rank gets any, all get
  // the same `refusal`, and the group can still be used.
  struct Allocation {
    RegisteredMemory memory;
    std::string refusal;
  };
  virtual Allocation allocate(const Collective& collective) = 0;

  // Registered memory of this rank alone, from any thread at any time. Errors: system when there is
  // too little.
  virtual RegisteredMemory allocate_local(std::size_t bytes) = 0;

  // Begins to send or receive `message`, which must not be changed until it is complete. What is
  // wrong with one message is in its `error`.
  virtual void post(std::shared_ptr<Message> message) = 0;

  // Moves all posted messages as far as they go. Never waits for a peer. Errors: corrupt, and those
  // of await_messages().
  virtual void progress() = 0;

  // Forgets all posted messages: their buffers are not touched again.
  virtual void drop_messages() = 0;

  // How many messages of or to this rank have been sent and not received.
  virtual std::size_t messages_pending() const = 0;

  // Blocks until the bell is no longer `seen`, after which progress() may have more to do, or some
  // 20 ms have passed. Errors: peer_lost, and what give_up() was told. These two may be called by
  // any number of threads, beside the members above.
  virtual std::uint32_t message_bell() const = 0;
  virtual void await_messages(std::uint32_t seen) = 0;

  // A backend of the same kind for a group of `ranks`, of which this is one. Blocks until all of
  // these have called it; the others do not take part. May be called by any number of threads,
  // beside the members above. `watch` is called meanwhile, and may throw. Errors: also peer_lost,
  // when one of `ranks` has left this group; GroupGivenUp, when this group was given up. After an
  // Error on any rank, no rank gets a group that works, and `group` is never used again.
  virtual std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                         std::chrono::milliseconds timeout,
                                         const std::function<void()>& watch) = 0;

  // This rank makes no more calls. A rank that waits for it from now on, or does already, gets an
  // Error(peer_lost) with its number; others notice nothing. Called once, when no collective is
  // under way.
  virtual void leave() = 0;

  // Makes calls that are under way, here and on all other ranks, and all later ones throw a
  // GroupGivenUp at their next wait. May be called from any thread at any time.
  virtual void give_up(const GivenUp& why) = 0;
};

}  // namespace lockstep::comm
