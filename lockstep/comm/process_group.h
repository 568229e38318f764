// A group of ranks that call the same collectives in the same order.
//
//   auto world = lockstep::init_process_group();
//   auto memory = world.allocate(1 << 20);                    // mapped by all ranks of the host
//   world.all_reduce({.data = memory.data(), .count = 1 << 18});
//   lockstep::destroy_process_group(world);
//
// A copyable handle; copies share one group. When the last one goes without
// destroy_process_group(), because an exception unwinds it say, the group is abandoned without
// communicating and the other ranks' calls fail.
//
// Thread safety: every member may be called from any thread; calls are taken one at a time, in an
// order that must be the same on all ranks.
// Blocking: until this rank's part is complete and its memory may be used. The _async forms return
// at once and run in order on the group's one progress thread; buffers must stay valid until the
// Work is complete.
// Errors: misuse for wrong arguments and after destroy_process_group(), with nothing sent;
// mismatch when ranks call different things, with no memory touched; peer_lost; timeout;
// unsupported. After mismatch, peer_lost, timeout and system the group is broken: every further
// call throws the same Error.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/api.h"
#include "lockstep/comm/buffer.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/registered_memory.h"
#include "lockstep/comm/time.h"
#include "lockstep/comm/work.h"

namespace lockstep {

struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout = {};  // The group's own when not given;
                                                          // milliseconds::max() for none at all.
  std::string_view tag = {};  // Ranks whose tags differ get a mismatch: a cheap order check.
  std::shared_ptr<const void> keep_alive = {};  // Dropped when an _async call is complete.
};

class LOCKSTEP_API ProcessGroup {
 public:
  int rank() const;
  int size() const;
  int local_rank() const;  // Among the ranks of this group on this host.
  int local_size() const;
  const std::string& name() const;

  // Element i of `data` becomes the combination of all ranks' element i: the same bits on all
  // ranks, from run to run.
  void all_reduce(const Buffer& data, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {}) const;
  Work all_reduce_async(const Buffer& data, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {}) const;

  // `data` becomes that of rank `root`.
  void broadcast(const Buffer& data, int root, const CallOptions& options = {}) const;
  Work broadcast_async(const Buffer& data, int root, const CallOptions& options = {}) const;

  // Rank r's `input` is copied to elements [r * input.count, (r + 1) * input.count) of `output`,
  // which holds size() * input.count elements. `input` may be its own place in `output`; they
  // must not overlap otherwise.
  void all_gather(const Buffer& input, const Buffer& output, const CallOptions& options = {}) const;
  Work all_gather_async(const Buffer& input, const Buffer& output,
                        const CallOptions& options = {}) const;

  // Returns once every rank has called it.
  void barrier(const CallOptions& options = {}) const;
  Work barrier_async(const CallOptions& options = {}) const;

  // Collective: `bytes`, the same on all ranks, of memory on which collectives copy nothing.
  // Errors: system, on all ranks and with the numbers, when the host has too little memory.
  RegisteredMemory allocate(std::size_t bytes, const CallOptions& options = {}) const;

 private:
  friend LOCKSTEP_API ProcessGroup init_process_group(const struct InitOptions& options);
  friend LOCKSTEP_API void destroy_process_group(ProcessGroup& group);
  class State;
  explicit ProcessGroup(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

struct InitOptions {
  // For init itself and for every call that gives none of its own. Too short a time turns a slow
  // file system or a long evaluation on one rank into an Error; no time is waited for ever.
  std::chrono::milliseconds timeout = default_timeout;

  // Who this rank is; taken from the launcher's environment variables when not given.
  std::optional<LaunchEnvironment> environment = {};
};

// Makes the group of all ranks of the job. Collective. Once per process at a time: after
// destroy_process_group() it may be called again.
// Errors: misuse when no launcher says who we are, or when called twice; unsupported for ranks on
// several hosts; timeout when a rank did not come; mismatch when ranks were told different things.
LOCKSTEP_API ProcessGroup init_process_group(const InitOptions& options = {});

// The orderly end: waits for all ranks, then leaves the job. Every copy of `group` is unusable
// afterwards; memory that it allocated lives on.
LOCKSTEP_API void destroy_process_group(ProcessGroup& group);

}  // namespace lockstep
