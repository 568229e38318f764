// A group of ranks that call the same collectives in the same order.
//
//   auto world = lockstep::init_process_group();
//   auto memory = world.allocate(1 << 20);                    // mapped by all ranks of the host
//   world.all_reduce({.data = memory.data(), .count = 1 << 18});
//   lockstep::destroy_process_group(world);
//
// Thread safety: any thread may call any member. A group runs one collective at a time, in an order
// that must be the same on all ranks. Messages run beside collectives. Groups do not wait for each
// other.
// Blocking: until this rank's part is complete and its memory may be reused. The _async forms
// return immediately; one progress thread of the group runs their collectives in order. Buffers
// must stay valid until the Work is complete. With CUDA buffers, a call returns, and a Work is
// complete, when the operation is enqueued on the buffers' stream. Later work on the stream sees
// the result.
// Errors: misuse for wrong arguments, after destroy_process_group(), and for every call in a
// fork()ed child; nothing is sent. Mismatch, on all ranks, when their calls differ; no memory is
// changed. Timeout, with all ranks that did not come, or a note that earlier calls took the time.
// Also peer_lost, aborted and unsupported. Mismatch, peer_lost, timeout, aborted and system break
// the group. Every further call then throws the same Error; ranks that did not see it get an Error
// that describes it. For about 20 ms they may still write into registered memory.
// Lifetime: a copyable handle; copies share one group. If the last handle is destroyed without
// destroy_process_group(), for example by an exception, the group is abandoned. Nothing is sent,
// and the other ranks' calls fail. A fork()ed child may only destroy its handles, which has no
// effect. A child of vfork() must not use them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/work.h"

namespace lockstep {

struct CallOptions {
  // Time limit of the whole call, including waits for the group's earlier calls. For the _async
  // form of a collective it starts when those have ended. Default: the group's timeout.
  // milliseconds::max() means no limit; 0 allows only a moment.
  std::optional<std::chrono::milliseconds> timeout = {};

  // Name of a collective, to check the order of calls at low cost. Different labels are a mismatch
  // that shows both, each cut to 200 bytes. Messages have no label.
  std::string_view label = {};

  std::shared_ptr<const void> keep_alive = {};  // Released when an _async call is complete.
};

class LOCKSTEP_API ProcessGroup {
 public:
  int rank() const;
  int size() const;
  int local_rank() const;  // Rank among this group's ranks on this host.
  int local_size() const;
  const std::string& name() const;
  const std::string& backend() const;  // Such as "shm" or "shm+gloo": InitOptions::backend.

  // Replaces element i of `data` by the combination of all ranks' element i. The result has the
  // same bits on all ranks and in every run.
  void all_reduce(const Buffer& data, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {}) const;
  Work all_reduce_async(const Buffer& data, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {}) const;

  // Replaces `data` by rank `root`'s.
  void broadcast(const Buffer& data, int root, const CallOptions& options = {}) const;
  Work broadcast_async(const Buffer& data, int root, const CallOptions& options = {}) const;

  // Like all_reduce(), but writes only rank `root`'s `data`.
  void reduce(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {}) const;
  Work reduce_async(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {}) const;

  // Copies every rank r's `input` to part r of `output`. `input` may be this rank's part of
  // `output`; any other overlap is misuse.
  void all_gather(const Buffer& input, const Buffer& output, const Counts& counts = {},
                  const CallOptions& options = {}) const;
  Work all_gather_async(const Buffer& input, const Buffer& output, const Counts& counts = {},
                        const CallOptions& options = {}) const;

  // Combines part rank() of all ranks' `input` into `output`. `output` may be this rank's part of
  // `input`; any other overlap is misuse.
  void reduce_scatter(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                      const Counts& counts = {}, const CallOptions& options = {}) const;
  Work reduce_scatter_async(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                            const Counts& counts = {}, const CallOptions& options = {}) const;

  // Like all_gather(), but only rank `root` has an `output`; other ranks' `output` is ignored.
  void gather(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
              const CallOptions& options = {}) const;
  Work gather_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                    const CallOptions& options = {}) const;

  // Copies part rank() of rank `root`'s `input` to `output`; other ranks' `input` is ignored. On
  // the root, `output` may be its own part of `input`; any other overlap is misuse.
  void scatter(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
               const CallOptions& options = {}) const;
  Work scatter_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                     const CallOptions& options = {}) const;

  // Copies part rank() of every rank r's `input` to part r of `output`. Counts belong to this rank:
  // elements sent to each rank, and elements received from each. The latter must equal what that
  // rank sends. Both are empty when all parts are equal. Any overlap of the buffers is misuse.
  void all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                  const Counts& receive_counts = {}, const CallOptions& options = {}) const;
  Work all_to_all_async(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                        const Counts& receive_counts = {}, const CallOptions& options = {}) const;

  // Returns once every rank has called it.
  void barrier(const CallOptions& options = {}) const;
  Work barrier_async(const CallOptions& options = {}) const;

  // A barrier with its own name, to check that all ranks are present.
  void monitored_barrier(const CallOptions& options = {}) const;

  // Sends `data` to rank `peer`, which must receive the same number of elements of the same type.
  // Returns when `data` may be reused; the peer may not have received it yet. `tag` must not be
  // negative. Messages of one tag between two ranks keep their order. A rank cannot send to itself.
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

  // Collective: makes a group of these `ranks`, in that order; returns nothing on the other ranks.
  // All ranks pass the same list. Errors: misuse for a rank that is listed twice or does not exist.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks,
                                        const CallOptions& options = {}) const;

  // Collective: makes a group of all ranks with the same `color`, which may be any number. Ranks
  // are ordered by `key`, then by their rank in this group. A label becomes part of the group's
  // name.
  ProcessGroup split(int color, int key = 0, const CallOptions& options = {}) const;

  // Makes a group of these `ranks`, in that order. Only these ranks call it: other ranks may do
  // anything meanwhile, or leave. All pass the same list and the same `name`. The group is called
  // "GROUP.NAME"; the second attempt with the same ranks and name makes "GROUP.NAME#2", and so on.
  // Errors: misuse when this rank is not listed, or a rank is listed twice or does not exist.
  // Timeout when a rank does not come or passes another list. Aborted when another rank starts
  // again. These errors do not break this group: all members may try again, equally often on all
  // hosts.
  ProcessGroup group_of(const std::vector<int>& ranks, std::string_view name,
                        const CallOptions& options = {}) const;

  // Collective: allocates memory on which collectives copy nothing. This holds for this group and
  // all groups of the job among its ranks. `bytes` is the same on all ranks. Errors: system, on all
  // ranks and with the numbers, when a host has too little memory; the group stays usable.
  RegisteredMemory allocate(std::size_t bytes, const CallOptions& options = {}) const;

  // Allocates such memory for this rank alone, from any thread, without the other ranks. Each peer
  // maps it when a collective first uses it. Nothing is copied if the buffers of all ranks lie in
  // memory from this function. The host gets the memory back at the end of the job's last group, so
  // allocate large blocks and reuse them. Each block takes a file descriptor of this process.
  // Errors: system when the host has too little memory, or this process too many open files.
  RegisteredMemory allocate_local(std::size_t bytes) const;

  // Collective: allocates one block that all ranks of the host share. `bytes` is the same on all
  // ranks. Reads of what another rank wrote need a barrier() or another collective in between.
  // Errors: as allocate().
  RegisteredMemory allocate_shared(std::size_t bytes, const CallOptions& options = {}) const;

  // Catches SIGTERM and SIGUSR1 from now on: they no longer end this process, and preempted()
  // reports them. `lockstep run` forwards both to its ranks. Replaces this process's handlers of
  // the two signals. One call serves all groups of the process.
  void on_preemption() const;

  // Collective: returns on all ranks whether any rank has received such a signal. Call it once per
  // step; it costs an all_reduce of one number. When true, save a checkpoint and leave main() with
  // exit_preempted, which makes schedulers restart the job. Errors: misuse before on_preemption().
  bool preempted(const CallOptions& options = {}) const;

  // Sets this rank's training step for `lockstep status`, at the cost of one store to memory. By
  // default, the step counts the backward passes in which DistributedDataParallel averaged
  // gradients.
  void set_step(std::uint64_t step) const;

  // Ends the group, from any thread. Within about 20 ms, its calls throw Error(aborted) with
  // `reason` on all ranks, or peer_lost if a rank is known to be lost. Does nothing if the group is
  // broken.
  void abort(std::string_view reason = "abort() was called") const;

  // Returns the last 256 collectives and messages of this rank as JSON, with their times and
  // progress; docs/protocol.md defines it. When the group breaks, the record is saved in the folder
  // LOCKSTEP_FLIGHT_RECORD. Without that variable, or if the folder is full, it goes to the log at
  // level info.
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

// Collective: makes the group of all ranks of the job. A process has one such group at a time; call
// again after destroy_process_group().
// Errors: misuse when no launcher provides this process's rank, when the group already exists, and
// on several hosts when a listener has no token: docs/guide/clusters.md. Mismatch, on all ranks,
// when they request different backends or WORLD_SIZE differs from the launcher's. Unsupported for a
// backend that some ranks lack; the message names them. Timeout when a rank does not come. MPI's
// initialization and first exchange have no deadline.
LOCKSTEP_API ProcessGroup init_process_group(const InitOptions& options = {});

// Collective: ends the group on all ranks. Its handles are unusable afterwards. Registered memory
// and tensors made from it stay valid. Ending the world group also ends the groups made from it.
// Errors: mismatch, on all ranks, when another rank calls something else, or when a message was
// sent but not received.
LOCKSTEP_API void destroy_process_group(ProcessGroup& group);

// Leaves the group in order, on this rank alone, and also the groups made from it. The other ranks
// may continue: a call that waits for this rank fails with peer_lost, "rank 1 has left group
// world". Also works for a broken group.
// A message whose send() has returned can still be received, even after this process has ended. The
// remaining ranks can still make groups, allocate, and exchange first messages. Only a group across
// hosts needs the job's store, which this process may serve.
// Blocking: until this rank's earlier collectives have ended. Incomplete messages fail, on this
// rank only. Background work that before_end() finishes is cut off.
// Errors: misuse for a group that was destroyed or left.
LOCKSTEP_API void leave_process_group(ProcessGroup& group);

}  // namespace lockstep
