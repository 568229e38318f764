// Collectives of ranks that share memory, on CPU buffers.
//
// All ranks choose alike between the methods of docs/algorithms.md, from the buffer locations
// exchanged on entry.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/mailbox.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/in_place.h"
#include "lockstep/comm/shm/peer_memory.h"
#include "lockstep/comm/shm/peers.h"
#include "lockstep/comm/shm/regions.h"
#include "lockstep/comm/shm/shm_pipes.h"
#include "lockstep/comm/shm/staging.h"

namespace lockstep::comm {

class ShmBackend final : public Backend {
 public:
  // Collective over `peers`. Calls `watch`, which may throw, while ranks wait for each other.
  ShmBackend(
      std::shared_ptr<Peers> peers, std::string group, std::chrono::milliseconds timeout,
      std::function<void()> watch = [] {});

  std::string_view name() const override { return "shm"; }
  Place local() const override { return {peers_->rank(), peers_->size()}; }
  // InPlace supports nothing beyond Staging.
  bool native(Operation operation) const override { return Staging::does(operation); }
  void enter(const Collective& collective) override;
  std::optional<int> last_to_enter() const override { return barrier_.last_to_enter(); }
  const Signature& entered(int rank) const override { return barrier_.entry(rank).signature; }
  std::vector<std::string> labels(const Collective& collective) override;
  void run(const Collective& collective) override;
  Allocation allocate(const Collective& collective) override;
  RegisteredMemory allocate_local(std::size_t bytes) override {
    return allocate_own_region(*peers_, bytes);
  }
  Pipes& pipes() override { return pipes_; }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) override;
  void leave() override { barrier_.leave(); }
  void abort(const AbortReason& why) override { barrier_.abort(why); }

  // As abort(), for the AbortReason of a rank on another host.
  void abort_too(const AbortReason& why) { barrier_.abort(why, false); }

  void report_absent() { barrier_.report_absent(); }

  // As Barrier's, from any thread.
  void throw_if_over(const std::string& context) const { barrier_.throw_if_over(context); }

 private:
  GroupSegment make_segment(std::chrono::milliseconds timeout,
                            const std::function<void()>& watch) const;
  int number() const { return peers_->number(rank_); }
  void run_in_place(const Collective& collective);
  bool run_outside(const Collective& collective);
  void run_staged(const Collective& collective);
  std::string fail_together(const Collective& collective, const std::string& mine);

  const std::shared_ptr<Peers> peers_;
  const std::string group_;
  const int rank_;
  const int size_;
  const GroupSegment segment_;
  PeerMemory peer_memory_;
  Barrier barrier_;
  const std::string key_;  // Prefix of its memory's keys, unique.
  Regions regions_;
  Reduction reduction_;
  Staging staging_;
  InPlace in_place_;
  ShmPipes pipes_;
  std::uint32_t allocations_ = 0;
};

}  // namespace lockstep::comm
