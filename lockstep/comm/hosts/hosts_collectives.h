// Collectives of ranks on several hosts: shared memory inside a host and an engine between hosts.
//
// Data between hosts is divided into slices (docs/algorithms.md).
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
  // A part of a buffer, and this rank's slice of it.
  struct Chunk {
    Buffer data;
    std::size_t slot;  // Differs between neighbouring chunks.
    Counts slices;     // Elements, by local rank.
    Buffer mine;       // In scratch memory.
  };

  void by_engine_alone(const HostsCall& call);
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
