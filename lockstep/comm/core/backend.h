// The interface of a backend, which moves bytes between the ranks of one group.
//
// Collectives must come one at a time, in the same order on all ranks, with arguments that are
// valid on this rank.
//
// Blocking: run(), until this rank's memory may be reused; enter(), labels(), allocate() and
// among(), until all their ranks have called.
// Errors: peer_lost; timeout, with every absent rank; the reason that any rank gave to abort().
// Each breaks the group: only abort() and leave() may be called then.

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

// A collective as this rank entered it. operation_table describes `input` and `output`.
struct Collective {
  Signature signature;
  std::uint64_t sequence = 0;                           // Counts the group's operations from 1.
  std::chrono::milliseconds timeout = default_timeout;  // Starts at enter() or its first wait.
  Buffer input = {};
  Buffer output = {};

  // Elements of each rank's part; for all_to_all, counts[s * size + d] go from rank s to rank d.
  // signature.count is their sum, or each part's size without counts. See layout_uneven_pairs.
  std::span<const std::size_t> counts = {};

  // The label's text, cut to most_carried_label_bytes.
  std::string_view label = {};

  // Only compares all ranks' calls, without buffers or run().
  bool only_says = false;
};

// One end of a message. Ends match by rank and tag, in posting order.
struct Message {
  Operation operation = Operation::send;  // Or recv.
  Buffer buffer = {};
  int peer = 0;          // Receiver; sender, or any_source until a match.
  std::int64_t tag = 0;  // Not negative; in a receive, any_tag until a match.
  std::exception_ptr error = {};
  bool peer_left = false;             // Caused `error`; no other message is affected.
  std::atomic<bool> complete{false};  // Once set, no member changes.
};

// Begins error messages: "all_reduce #812 of group world on rank 3". abort_reason.h uses the part
// before " on rank ".
std::string describe_call(const Collective& collective, std::string_view group, int rank);
std::string describe_message(const Message& message, std::string_view group, int rank);

// Elements that a rank sends to and receives from each rank. Empty for a buffer without parts.
struct PartCounts {
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
};
PartCounts part_counts(const Collective& collective, int rank, int size);

inline bool is_on_device(const Collective& collective) {
  return collective.output.device != DeviceKind::cpu || collective.input.device != DeviceKind::cpu;
}

class Pipes;

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

  // Whether run() does this operation; always for all_gather and all_to_all, from which others are
  // composed.
  virtual bool native(Operation operation) const = 0;

  // Why run() cannot do `collective` in device memory; empty if it can. Not collective, for any
  // thread.
  virtual std::string refusal_on_device(const Collective&) {
    return "this group moves CPU memory only";
  }

  // Blocks until all ranks have entered. Writes no user memory.
  virtual void enter(const Collective& collective) = 0;

  // The last rank to enter, if this rank waited for it.
  virtual std::optional<int> last_to_enter() const { return std::nullopt; }

  virtual const Signature& entered(int rank) const = 0;

  // Each rank's label for `collective`. All ranks call it, not run(), when their labels differ.
  // Blocking, Errors: as enter().
  virtual std::vector<std::string> labels(const Collective& collective) = 0;

  // Completes the collective that was entered last.
  virtual void run(const Collective& collective) = 0;

  // After enter(): allocates signature.count bytes, per rank for allocate, per host for
  // allocate_shared. With too little memory, all ranks get the same `refusal` and no memory; the
  // group stays usable.
  struct Allocation {
    RegisteredMemory memory;
    std::string refusal;
  };
  virtual Allocation allocate(const Collective& collective) = 0;

  // Allocates registered memory for this rank alone, from any thread at any time. Errors: system
  // for too little memory.
  virtual RegisteredMemory allocate_local(std::size_t bytes) = 0;

  // Carries the group's messages, for a Mailbox. Lives as long as the backend. May be used by
  // another thread than the collectives'.
  virtual Pipes& pipes() = 0;

  // Makes a backend for a group of `ranks`. Only these ranks call it, from any thread at any time.
  // Blocks until all have called; calls `watch` meanwhile, which may throw. Errors: also peer_lost,
  // when one of `ranks` has left this group; GroupAborted, if this group was aborted. After an
  // Error on any rank, the new group fails on all ranks. Each attempt, and each group of these
  // ranks, needs another name: a rank may otherwise find the memory of the last one.
  virtual std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                         std::chrono::milliseconds timeout,
                                         const std::function<void()>& watch) = 0;

  // This rank makes no more calls: ranks that wait for it get an Error(peer_lost) with its number.
  // Called once, without a running collective.
  virtual void leave() = 0;

  // Makes running and later calls on all ranks throw a GroupAborted at their next wait. Any thread
  // may call it at any time.
  virtual void abort(const AbortReason& why) = 0;
};

}  // namespace lockstep::comm
