// Completes the collectives of ranks on several hosts: two levels, shared memory inside a host and
// an engine between hosts.
//
// Data between hosts is divided into slices, one for each local rank, so that each byte crosses a
// host's link once. An all_reduce is a reduce_scatter in shared memory, an all_reduce of each slice
// by the engine, and an all_gather in shared memory. With one rank per host, or on request, the
// engine does everything. docs/algorithms.md counts steps and bytes.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/hosts/hosts_engines.h"
#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

class HostsCollectives {
 public:
  // All arguments must outlive it.
  HostsCollectives(const HostsGroup& group, HostsEngines& engines, KeptMemory& memory);

  // Blocking, Errors: as Backend::run().
  void run(const Collective& collective);

 private:
  // A part of a buffer, and the slice of it that this rank sends to other hosts.
  struct Chunk {
    Buffer data;
    std::size_t slot;  // Two neighbours have different ones.
    Counts slices;     // Elements, by local rank.
    Buffer mine;       // This rank's slice, in scratch memory.
  };

  void by_engine_alone(const HostsCall& call);
  void by_all_ranks(const HostsCall& call);
  void all_reduce(const HostsCall& call);
  void broadcast(const HostsCall& call);
  void all_gather(const HostsCall& call);
  void reduce_scatter(const HostsCall& call);

  std::vector<Chunk> chunks_of(const HostsCall& call, std::size_t most) const;
  std::vector<Chunk> sliced_chunks_of(const HostsCall& call);
  template <class Before, class Cross, class After>
  void in_stages(const std::vector<Chunk>& chunks, Before before, Cross cross, After after);

  std::unique_ptr<EngineCall> call_of_slice(const HostsCall& call, Operation operation,
                                            const Chunk& chunk);
  void cross_slices(const HostsCall& call, Operation operation, const Buffer& input,
                    const Buffer& output, const Counts& counts);
  void cross(const HostsCall& call, EngineCommunicator& engine, const Collective& collective);

  const HostMap& map_;
  const HostsGroup& group_;
  HostsEngines& engines_;
  KeptMemory& memory_;
};

}  // namespace lockstep::comm
