// A group of ranks that call the same collectives in the same order.
//
//   auto world = lockstep::init_process_group();
//   auto memory = world.allocate(1 << 20);                    // mapped by all ranks of the host
//   world.all_reduce({.data = memory.data(), .count = 1 << 18});
//   lockstep::destroy_process_group(world);
//
// A copyable handle; copies share one group. When the last one goes without
// destroy_process_group(), because an exception unwinds it say, the group is abandoned without
// communicating and the other ranks' calls fail. In a fork()ed child handles may only go, which
// harms nobody. A child of vfork() may not touch them.
//
// Thread safety: every member may be called from any thread. Collectives are taken one at a time,
// in an order that must be the same on all ranks; messages go beside them; groups do not wait for
// each other.
// Blocking: until this rank's part is complete and its memory may be used. The _async forms return
// at once; collectives then run in order on the group's one progress thread. Buffers must stay
// valid until the Work is complete. On CUDA buffers a call returns, and a Work is complete, once it
// is enqueued on the buffers' stream, which finds the result; the host does not wait for the
// device.
// Errors: misuse for wrong arguments, after destroy_process_group(), and in a fork()ed child for
// every call, with nothing sent; mismatch, on all ranks, when they call different things, with no
// memory touched; peer_lost; timeout, naming all ranks that did not come, or saying that earlier
// calls took the time; aborted; unsupported. After mismatch, peer_lost, timeout, aborted and system
// the group is broken: every further call throws the same Error, and ranks that did not see it get
// one that says so. Until they have noticed, some 20 ms, they may still write into registered
// memory.

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
#include "lockstep/comm/core/counts.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/core/message.h"
#include "lockstep/comm/core/reduce_op.h"
#include "lockstep/comm/core/registered_memory.h"
#include "lockstep/comm/work.h"

namespace lockstep {

struct CallOptions {
  // How long the call may take from its beginning to its end, waits for the group's earlier calls
  // included. That of a collective's _async form begins when those have ended. The group's own when
  // not given; milliseconds::max() for none at all; 0 for no wait but a moment's.
  std::optional<std::chrono::milliseconds> timeout = {};

  // A name for a collective: ranks whose labels differ get a mismatch, which shows both, cut to 200
  // bytes. A cheap check of their order. Messages have none.
  std::string_view label = {};

  std::shared_ptr<const void> keep_alive = {};  // Dropped when an _async call is complete.
};

class LOCKSTEP_API ProcessGroup {
 public:
  int rank() const;
  int size() const;
  int local_rank() const;  // Among the ranks of this group on this host.
  int local_size() const;
  const std::string& name() const;
  const std::string& backend() const;  // Such as "shm" or "shm+gloo": InitOptions::backend.

  // Element i of `data` becomes the combination of all ranks' element i: the same bits on all
  // ranks, from run to run.
  void all_reduce(const Buffer& data, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {}) const;
  Work all_reduce_async(const Buffer& data, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {}) const;

  // `data` becomes that of rank `root`.
  void broadcast(const Buffer& data, int root, const CallOptions& options = {}) const;
  Work broadcast_async(const Buffer& data, int root, const CallOptions& options = {}) const;

  // As all_reduce(), but only rank `root`'s `data` is written.
  void reduce(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {}) const;
  Work reduce_async(const Buffer& data, int root, ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {}) const;

  // Part r of `output` becomes rank r's `input`. `input` may be its own part of `output`; when they
  // overlap otherwise, that is misuse.
  void all_gather(const Buffer& input, const Buffer& output, const Counts& counts = {},
                  const CallOptions& options = {}) const;
  Work all_gather_async(const Buffer& input, const Buffer& output, const Counts& counts = {},
                        const CallOptions& options = {}) const;

  // `output` becomes the combination of part rank() of all ranks' `input`. It may be its own part
  // of `input`; when they overlap otherwise, that is misuse.
  void reduce_scatter(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                      const Counts& counts = {}, const CallOptions& options = {}) const;
  Work reduce_scatter_async(const Buffer& input, const Buffer& output, ReduceOp op = ReduceOp::sum,
                            const Counts& counts = {}, const CallOptions& options = {}) const;

  // As all_gather(), but only rank `root` has an `output`; the others' is not looked at.
  void gather(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
              const CallOptions& options = {}) const;
  Work gather_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                    const CallOptions& options = {}) const;

  // `output` becomes part rank() of rank `root`'s `input`, as whose own part it may lie there; the
  // others' is not looked at. When the root's overlap otherwise, that is misuse.
  void scatter(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
               const CallOptions& options = {}) const;
  Work scatter_async(const Buffer& input, const Buffer& output, int root, const Counts& counts = {},
                     const CallOptions& options = {}) const;

  // Part r of `output` becomes part rank() of rank r's `input`. Counts are this rank's own: what
  // it sends to each rank, and what it receives from each, which is what they send to it. Both
  // empty when all parts are equal. When the buffers overlap, that is misuse.
  void all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                  const Counts& receive_counts = {}, const CallOptions& options = {}) const;
  Work all_to_all_async(const Buffer& input, const Buffer& output, const Counts& send_counts = {},
                        const Counts& receive_counts = {}, const CallOptions& options = {}) const;

  // Returns once every rank has called it.
  void barrier(const CallOptions& options = {}) const;
  Work barrier_async(const CallOptions& options = {}) const;

  // The same under a name of its own, for a check that all ranks are there. Its timeout, as that of
  // every collective, names every rank that is absent, on all that are not.
  void monitored_barrier(const CallOptions& options = {}) const;

  // Sends `data` to rank `peer`, which receives as many elements of the same type. Returns once it
  // is on its way: `data` may be used again, though nobody may have received it yet. `tag` is not
  // negative; messages of one tag between two ranks keep their order. Not to oneself.
  void send(const Buffer& data, int peer, std::int64_t tag = 0,
            const CallOptions& options = {}) const;
  Work send_async(const Buffer& data, int peer, std::int64_t tag = 0,
                  const CallOptions& options = {}) const;

  // The next message from `peer` with `tag`; any_source and any_tag take what comes first.
  Source recv(const Buffer& data, int peer = any_source, std::int64_t tag = any_tag,
              const CallOptions& options = {}) const;
  Work recv_async(const Buffer& data, int peer = any_source, std::int64_t tag = any_tag,
                  const CallOptions& options = {}) const;

  // Collective: a group of `ranks` of this one, in that order; nothing on the other ranks. All
  // ranks give the same list. Errors: misuse for a rank that is named twice or does not exist.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks,
                                        const CallOptions& options = {}) const;

  // Collective: a group of all ranks that give the same `color`, any number, in the order of their
  // `key` and, where these are equal, of their rank here.
  ProcessGroup split(int color, int key = 0, const CallOptions& options = {}) const;

  // Collective: `bytes`, the same on all ranks, of memory on which collectives copy nothing.
  // Errors: system, on all ranks and with the numbers, when the host has too little memory; the
  // group stays usable.
  RegisteredMemory allocate(std::size_t bytes, const CallOptions& options = {}) const;

  // Collective: `bytes`, the same on all ranks, of memory that is one and the same for all ranks of
  // the host: what one writes there the others read, once a barrier() or another collective lies
  // between. Errors: as allocate()'s.
  RegisteredMemory allocate_shared(std::size_t bytes, const CallOptions& options = {}) const;

  // Asks that the job may be told to make room: from now on SIGTERM and SIGUSR1, sent to this
  // process or to `lockstep run`, which passes them on, do not end this process but are kept for
  // preempted(). Replaces this process's handlers of these two signals; once is enough for all of
  // its groups.
  void on_preemption() const;

  // Collective: whether any rank has got such a signal, the same answer on all ranks. To be asked
  // once a step, at the cost of an all_reduce of one number; when it is true, save a checkpoint and
  // leave main() with exit_preempted, by which schedulers know that the job wants to be started
  // again. Errors: misuse before on_preemption().
  bool preempted(const CallOptions& options = {}) const;

  // Says which step of its training this rank is at, for `lockstep status`. Costs a store to
  // memory. Without it, that counts the backward passes in which DistributedDataParallel averaged
  // gradients.
  void set_step(std::uint64_t step) const;

  // Ends the group from any thread: calls that are under way or still to come throw
  // Error(aborted) with `reason`, on all ranks, within some 20 ms. Does nothing after an Error that
  // has broken the group.
  void abort(std::string_view reason = "abort() was called") const;

  // The last 256 collectives and messages of this rank as JSON: what, when, and how far they came.
  // docs/protocol.md names its members. The same is saved when the group breaks, into the folder
  // LOCKSTEP_FLIGHT_RECORD when that is set, else, or when it is full, to the log at level info.
  std::string flight_record() const;

  class State;  // Not for users.

 private:
  friend struct GroupAccess;
  friend LOCKSTEP_API void destroy_process_group(ProcessGroup& group);
  explicit ProcessGroup(std::shared_ptr<State> state);
  State& state() const;

  std::shared_ptr<State> state_;
};

// Makes the group of all ranks of the job. Collective. Once per process at a time: after
// destroy_process_group() it may be called again.
// Errors: misuse when no launcher says who we are, when called twice, and on several hosts
// without a token for what listens on the network: docs/guide/clusters.md; mismatch, on all ranks,
// when they ask for different backends or WORLD_SIZE is not the launcher's; unsupported for a
// backend that not all ranks have, saying who lacks what; timeout when a rank does not come (MPI's
// own start and its first exchange have no deadline).
LOCKSTEP_API ProcessGroup init_process_group(const InitOptions& options = {});

// Ends the group on all ranks. Collective. Its handles are unusable afterwards; registered memory
// and the tensors made from it live on. The end of the world is the end of the groups made from it.
// Errors: mismatch, on all ranks, when another one calls something else or a message was sent that
// nobody received.
LOCKSTEP_API void destroy_process_group(ProcessGroup& group);

}  // namespace lockstep
