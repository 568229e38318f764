// What a way of moving bytes between the ranks of one group must be able to do.
//
// ProcessGroup holds everything that all backends share: argument checks, the numbering of
// operations, deadlines, asynchronous calls. A backend may rely on it that calls come one at a
// time, in the same order on all ranks, with arguments that are valid on this rank alone.
//
// Blocking: every member, until this rank's part is complete and its memory may be used.
// Errors: mismatch, on every rank and before any memory is written, when ranks' signatures
// differ; peer_lost; timeout at `call.deadline`; unsupported for what it documents. After any of
// them but unsupported the group is broken and no further call is made.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/comm/buffer.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/registered_memory.h"
#include "lockstep/comm/signature.h"
#include "lockstep/comm/time.h"

namespace lockstep {

// One operation of a group, as this rank entered it.
struct Call {
  Signature signature;
  std::uint64_t sequence = 0;  // Counts the group's operations from 1.
  Deadline deadline = no_deadline;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // Whether all_reduce() can do this pair.
  virtual bool reduces(DType dtype, ReduceOp op) const = 0;

  // Element i of `data` becomes call.signature.op over all ranks' element i, the same bits on
  // all ranks.
  virtual void all_reduce(const Buffer& data, const Call& call) = 0;

  // `data` becomes rank call.signature.root's.
  virtual void broadcast(const Buffer& data, const Call& call) = 0;

  // Rank r's `input` is copied to elements [r * input.count, (r + 1) * input.count) of `output`.
  virtual void all_gather(const Buffer& input, const Buffer& output, const Call& call) = 0;

  // Returns once every rank has entered.
  virtual void barrier(const Call& call) = 0;

  // call.signature.count bytes for every rank; see RegisteredMemory.
  virtual RegisteredMemory allocate(const Call& call) = 0;

  // Makes a call that is under way on another thread, and every later one, throw Error(aborted)
  // at its next wait. The one member that may be called from any thread at any time.
  virtual void cancel() = 0;
};

}  // namespace lockstep
