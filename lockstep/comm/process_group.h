// A group of ranks that call the same collectives in the same order.
//
//   auto world = lockstep::init_process_group();
//   auto memory = world.allocate(1 << 20);                    // Mapped by all ranks of the host.
//   world.all_reduce({.data = memory.data(), .count = 1 << 18});
//   lockstep::destroy_process_group(world);
//
// Thread safety: any thread. A group runs one collective at a time; messages and other groups run
// concurrently.
// Blocking: until this rank's part is complete and its memory may be reused. The _async forms
// return immediately; their buffers must stay valid until the Work is complete. With CUDA buffers,
// complete means enqueued on the buffers' stream.
// Errors: misuse, before anything is sent, for wrong arguments, after destroy_process_group(), and
// in a fork()ed child. Mismatch, on all ranks, when their calls differ; no memory is changed.
// Timeout, with all absent ranks. Also unsupported. Mismatch, timeout, peer_lost, aborted and
// system break the group: every further call throws the same Error. Other ranks get an Error that
// describes it, and may write into registered memory for about 20 ms.
// Lifetime: copies share one group. Destroying the last without destroy_process_group() makes the
// other ranks' calls fail. A fork()ed child may only destroy its handles, without effect. A child
// of vfork() must not use them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/work.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep {

struct CallOptions {
  // Limit of the whole call, including waits for the group's earlier calls; for an _async
  // collective, from their end. Default: the group's timeout. milliseconds::max(): no limit.
  std::optional<std::chrono::milliseconds> timeout = {};

  // Different labels of one collective are a mismatch that shows both, cut to 200 bytes. Messages
  // have no label.
  std::string_view label = {};

  std::shared_ptr<const void> keep_alive = {};  // Released when an _async call is complete.
};

// An operation uses the members that its row of operation_table (job/detail/operation.h) describes.
struct CollectiveArguments {
  Buffer input = {};
  Buffer output = {};  // The only buffer of an operation in place.
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  // For all_to_all, those sent to each rank, then those received from each; or none.
  std::span<const std::size_t> counts = {};
};

class ProcessGroup;

// Any collective that moves data, or a barrier. The members of ProcessGroup are its named forms.
// Errors: also misuse for another operation.
LOCKSTEP_API void run_collective(const ProcessGroup& group, Operation operation,
                                 const CollectiveArguments& given, const CallOptions& options = {});
LOCKSTEP_API Work run_collective_async(const ProcessGroup& group, Operation operation,
                                       const CollectiveArguments& given,
                                       const CallOptions& options = {});

class LOCKSTEP_API ProcessGroup {
 public:
  // A new group of this process alone, which moves CPU memory only. Needs no launcher. Calls that
  // move data allocate up to 2 MiB.
  static ProcessGroup self();

  int rank() const;
  int size() const;
  int local_rank() const;  // Rank among this group's ranks on this host.
  int local_size() const;
  const std::string& name() const;
  const std::string& backend() const;  // Such as "shm" or "shm+gloo": InitOptions::backend.

  // Replaces element i of `data` by the combination of all ranks' element i: the same bits on all
  // ranks and in every run. Engines ensure less: docs/assumptions.md.
  void all_reduce(const Buffer& data, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {}) const {
    run_collective(*this, Operation::all_reduce, {.output = data, .op = op}, options);
  }
  Work all_reduce_async(const Buffer& data, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::all_reduce, {.output = data, .op = op}, options);
  }

  // Replaces `data` by rank `root`'s.
  void broadcast(const Buffer& data, int root, const CallOptions& options = {}) const {
    run_collective(*this, Operation::broadcast, {.output = data, .root = root}, options);
  }
  Work broadcast_async(const Buffer& data, int root, const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::broadcast, {.output = data, .root = root},
                                options);
  }

  // Like all_reduce(), but writes only rank `root`'s `data`.
  void reduce(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {}) const {
    run_collective(*this, Operation::reduce, {.output = data, .op = op, .root = root}, options);
  }
  Work reduce_async(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::reduce, {.output = data, .op = op, .root = root},
                                options);
  }

  // Copies each rank r's `input` to part r of `output`. `input` may be this rank's part of
  // `output`; any other overlap of buffers, here and below, is misuse.
  void all_gather(const Buffer& input, const Buffer& output, const Counts& counts = {},
                  const CallOptions& options = {}) const {
    run_collective(*this, Operation::all_gather,
                   {.input = input, .output = output, .counts = counts}, options);
  }
  Work all_gather_async(const Buffer& input, const Buffer& output, const Counts& counts = {},
                        const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::all_gather,
                                {.input = input, .output = output, .counts = counts}, options);
  }

  // Combines part rank() of all ranks' `input` into `output`, which may be this rank's part of
  // `input`.
  void reduce_scatter(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                      const Counts& counts = {}, const CallOptions& options = {}) const {
    run_collective(*this, Operation::reduce_scatter,
                   {.input = input, .output = output, .op = op, .counts = counts}, options);
  }
  Work reduce_scatter_async(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                            const Counts& counts = {}, const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::reduce_scatter,
                                {.input = input, .output = output, .op = op, .counts = counts},
                                options);
  }

  // Like all_gather(), but only rank `root`'s `output` is used.
  void gather(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
              const CallOptions& options = {}) const {
    run_collective(*this, Operation::gather,
                   {.input = input, .output = output, .root = root, .counts = counts}, options);
  }
  Work gather_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                    const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::gather,
                                {.input = input, .output = output, .root = root, .counts = counts},
                                options);
  }

  // Copies part rank() of rank `root`'s `input` to `output`, which on the root may be that part.
  // Other ranks' `input` is ignored.
  void scatter(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
               const CallOptions& options = {}) const {
    run_collective(*this, Operation::scatter,
                   {.input = input, .output = output, .root = root, .counts = counts}, options);
  }
  Work scatter_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                     const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::scatter,
                                {.input = input, .output = output, .root = root, .counts = counts},
                                options);
  }

  // Copies part rank() of each rank r's `input` to part r of `output`. Rank r receives
  // send_counts[r] elements and sends receive_counts[r]. Both are empty for equal parts.
  void all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                  const Counts& receive_counts = {}, const CallOptions& options = {}) const;
  Work all_to_all_async(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                        const Counts& receive_counts = {}, const CallOptions& options = {}) const;

  void barrier(const CallOptions& options = {}) const {
    run_collective(*this, Operation::barrier, {}, options);
  }
  Work barrier_async(const CallOptions& options = {}) const {
    return run_collective_async(*this, Operation::barrier, {}, options);
  }

  // A barrier with its own name, to check that all ranks are present.
  void monitored_barrier(const CallOptions& options = {}) const {
    run_collective(*this, Operation::monitored_barrier, {}, options);
  }

  // Sends `data` to `peer`, another rank, which must receive the same count and type. Returns when
  // `data` may be reused, perhaps before it is received. `tag` must not be negative. Messages of
  // one tag between two ranks keep their order.
  void send(const Buffer& data, int peer, std::int64_t tag = 0,
            const CallOptions& options = {}) const;
  Work send_async(const Buffer& data, int peer, std::int64_t tag = 0,
                  const CallOptions& options = {}) const;

  // Receives the next message from `peer` with `tag`. any_source and any_tag match the first
  // message that arrives.
  Source recv(const Buffer& data, int peer = any_source, std::int64_t tag = any_tag,
              const CallOptions& options = {}) const;
  Work recv_async(const Buffer& data, int peer = any_source, std::int64_t tag = any_tag,
                  const CallOptions& options = {}) const;

  // Collective, with the same list on all ranks: makes a group of `ranks`, in that order. Returns
  // nothing on other ranks. Errors: misuse for no rank, or a repeated or unknown one.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks,
                                        const CallOptions& options = {}) const;

  // Collective: makes a group of all ranks with the same `color`, any number, ordered by `key`,
  // then rank. A label becomes part of the group's name.
  ProcessGroup split(int color, int key = 0, const CallOptions& options = {}) const;

  // Makes a group of `ranks`, in that order. Only they call it, with the same list and `name`. The
  // group is called "GROUP.NAME"; the second makes "GROUP.NAME#2", even after a success. Errors:
  // misuse for a list without this rank, or with a repeated or unknown one. Timeout when a rank
  // does not come or passes another list. Aborted when another starts again and this cannot join
  // in time. These errors do not break this group: members may retry, each host equally often.
  ProcessGroup group_of(const std::vector<int>& ranks, std::string_view name,
                        const CallOptions& options = {}) const;

  // Collective: allocates `bytes`, the same on all ranks. Collectives of this group, and of all
  // groups among its ranks, need not copy this memory. Errors: system, on all ranks, when a host
  // has too little memory; the group stays usable.
  RegisteredMemory allocate(std::size_t bytes, const CallOptions& options = {}) const;

  // As allocate(), for this rank alone. Peers map the memory when a collective first uses it.
  // Nothing is copied if all ranks' buffers lie in such memory. It is freed at the end of the job's
  // last group: allocate large blocks and reuse them. Each takes a file descriptor. Errors: system
  // when the host has too little memory, or this process too many open files.
  RegisteredMemory allocate_local(std::size_t bytes) const;

  // Collective: allocates one block of `bytes`, the same on all ranks, for all ranks of the host.
  // Separate a write from other ranks' reads by a barrier() or another collective. Errors: as
  // allocate().
  RegisteredMemory allocate_shared(std::size_t bytes, const CallOptions& options = {}) const;

  // SIGTERM and SIGUSR1 no longer end this process: preempted() reports them. Replaces both
  // handlers, for all groups.
  void on_preemption() const;

  // Collective: whether any rank has received such a signal. Call it once per step; it costs an
  // all_reduce of one number. When true, save a checkpoint and leave main() with exit_preempted:
  // schedulers then restart the job. Errors: misuse before on_preemption().
  bool preempted(const CallOptions& options = {}) const;

  // Sets this rank's training step for `lockstep status`. By default, it counts the backward passes
  // in which a data-parallel module averaged gradients.
  void set_step(std::uint64_t step) const;

  // Within about 20 ms, the group's calls on all ranks throw Error(aborted) with `reason`, or
  // peer_lost if a rank is known to be lost. Does nothing if the group is broken.
  void abort(std::string_view reason = "abort() was called") const;

  // This rank's last 256 collectives and 256 messages as JSON (docs/protocol.md). Saved, or else
  // logged, when the group breaks.
  std::string flight_record() const;

  class State;  // Not for users.

 private:
  friend struct GroupAccess;
  friend LOCKSTEP_API void destroy_process_group(ProcessGroup& group);
  friend LOCKSTEP_API void leave_process_group(ProcessGroup& group);
  explicit ProcessGroup(std::shared_ptr<State> state);
  State& state() const;

  std::shared_ptr<State> state_;
};

// Collective: makes the group of all ranks of the job. InitOptions::name allows several.
// Errors: misuse without a rank from a launcher, when the group already exists, and on several
// hosts when a listener has no token (docs/guide/clusters.md). Mismatch, on all ranks, for
// different backends or a WORLD_SIZE other than the launcher's. Unsupported for a backend that some
// ranks lack. Timeout when a rank does not come; MPI's initialization and first exchange have no
// deadline.
LOCKSTEP_API ProcessGroup init_process_group(const InitOptions& options = {});

// Collective: ends the group, and the groups made from it, on all ranks. Their handles become
// unusable; registered memory and tensors made from it stay valid.
// Errors: mismatch, on all ranks, when another rank calls something else, or for a message sent but
// not received.
LOCKSTEP_API void destroy_process_group(ProcessGroup& group);

// Leaves the group, and the groups made from it, on this rank alone, even if broken. The other
// ranks may continue; a call that waits for this rank fails with peer_lost. Sent messages can still
// be received, even after this process has ended. A new group across hosts needs the job's store,
// which this process may serve.
// Blocking: until this rank's earlier collectives have ended. Its incomplete messages fail.
// Background work that before_end() finishes is cut off.
// Errors: misuse for a group that was destroyed or left.
LOCKSTEP_API void leave_process_group(ProcessGroup& group);

}  // namespace lockstep
