// Collectives of ranks that share memory: processes of one host, or threads of one process.
//
// On registered memory nothing is copied: each rank reads its peers' buffers, and of a reduction
// does its slice of everybody's in place. Any other memory passes, chunk by chunk, through halves
// of a room that stays in cache, each rank filling one half while the other is read. Which way is
// taken is decided by all ranks alike, from what each says of its buffers on entry.
// docs/algorithms.md counts steps and bytes.
//
// Operations: all, on CPU buffers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/mailbox.h"
#include "lockstep/comm/shm/meeting.h"
#include "lockstep/comm/shm/peers.h"
#include "lockstep/comm/shm/regions.h"

namespace lockstep {

class ShmBackend final : public Backend {
 public:
  // Collective over all of `peers`. `group` names the group, the same on all ranks.
  ShmBackend(std::shared_ptr<Peers> peers, std::string group, Deadline deadline);

  std::string_view name() const override { return "shm"; }
  bool native(Operation operation, DType dtype, ReduceOp op) const override;
  void enter(const Collective& collective) override;
  const Signature& entered(int rank) const override { return meeting_.entry(rank).signature; }
  void run(const Collective& collective) override;
  Allocation allocate(const Collective& collective) override;
  void post(std::shared_ptr<Message> message) override { mailbox_.post(std::move(message)); }
  bool progress() override { return mailbox_.progress(); }
  void await_progress() override { mailbox_.await(); }
  std::size_t messages_pending() const override { return mailbox_.pending(); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 Deadline deadline) override;
  void give_up(Fault fault, std::string_view reason) override { meeting_.give_up(fault, reason); }

 private:
  enum class Path { at_once, in_place, staged };

  GroupSegment make_segment(Deadline deadline) const;
  bool is_small(const Collective& collective) const;
  Path path(const Collective& collective) const;
  bool in_one_region(std::uint64_t Lane::Entry::*place) const;
  bool all_prepared() const;

  void reduce_at_once(const Collective& collective);
  void run_in_place(const Collective& collective);
  void run_staged(const Collective& collective);
  void all_reduce_staged(const Collective& collective, std::size_t chunks);

  // The stages of a chunk. Between put() and take() all ranks meet; between put() and combine(),
  // and combine() and take(), when there is a combine().
  void put(const Collective& collective, std::size_t chunk);
  void combine(const Collective& collective, std::size_t chunk);
  void take(const Collective& collective, std::size_t chunk);

  std::size_t chunks_of(const Collective& collective) const;
  std::byte* half(int rank, std::size_t chunk) const;
  std::byte* located(int rank, std::uint64_t Lane::Entry::*place) const;
  void reduce(const Collective& collective, std::vector<const std::byte*>& sources,
              std::vector<std::byte*>& targets, std::size_t count) const;
  std::string fail_together(const Collective& collective, const std::string& mine);

  const std::shared_ptr<Peers> peers_;
  const std::string group_;
  const int rank_;
  const int size_;
  const GroupSegment segment_;
  Meeting meeting_;
  Mailbox mailbox_;
  Regions regions_;
  std::size_t chunks_before_ = 0;  // Of all earlier operations: chunks take the halves in turn.
  std::uint32_t regions_made_ = 0;
  std::vector<const std::byte*> sources_;  // Scratch.
  std::vector<std::byte*> targets_;
};

}  // namespace lockstep
