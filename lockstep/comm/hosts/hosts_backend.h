// Collectives of ranks on several hosts: two levels, shared memory inside a host and an engine
// between hosts.
//
// Data that cross a host's link are cut into slices, one for each local rank, so that each byte
// crosses it once: an all_reduce is a reduce_scatter in shared memory, an all_reduce of each slice
// by the engine, and an all_gather in shared memory. With one rank a host, or where that is asked
// for, the engine does it all. docs/algorithms.md counts steps and bytes.
//
// Entries, by which ranks compare a collective before it begins, deaths, aborts and messages go by
// our own lines: engines cannot cancel, name nobody, and match no messages of any source.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/mailbox.h"
#include "lockstep/comm/hosts/engine_communicator.h"
#include "lockstep/comm/hosts/failure_news.h"
#include "lockstep/comm/hosts/host_map.h"
#include "lockstep/comm/hosts/hosts_pipes.h"
#include "lockstep/comm/lines/lines.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {

// All groups of a process share this. Ranks are those of the job.
struct HostsContext {
  std::string backend;             // As InitOptions::backend names it.
  std::shared_ptr<HostPeers> job;  // All ranks; those of this host share memory.
  std::vector<int> places;         // The first rank on the same host, by rank.
  bool shares_memory = true;       // Whether those of one host do; else each counts as a host.
  std::vector<RemoteRank> ranks;   // Who they are, by rank; address is empty for this rank.
  CommunicatorOptions engine;      // All but the members, their place and the name.
  std::unique_ptr<Lines> lines;
  std::unique_ptr<FailureNews> news;
};

class HostsBackend final : public Backend {
 public:
  // Collective over `ranks` of the job, of which `rank` is this one's place in the list. `group`
  // names the group. `watch` is called while ranks wait for each other to be made, and may throw.
  HostsBackend(
      std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank, std::string group,
      std::chrono::milliseconds timeout, std::function<void()> watch = [] {});
  ~HostsBackend() override;
  HostsBackend(const HostsBackend&) = delete;
  HostsBackend& operator=(const HostsBackend&) = delete;

  std::string_view name() const override { return context_->backend; }
  Place local() const override { return here_; }
  bool native(Operation, DType, ReduceOp) const override { return true; }
  void enter(const Collective& collective) override;
  const Signature& entered(int rank) const override {
    return said_[static_cast<std::size_t>(rank)];
  }
  std::vector<std::string> labels(const Collective& collective) override;
  void run(const Collective& collective) override;
  Allocation allocate(const Collective& collective) override;
  void post(std::shared_ptr<Message> message) override { mailbox_.post(std::move(message)); }
  void progress() override { mailbox_.progress(); }
  void drop_messages() override { mailbox_.drop(); }
  std::size_t messages_pending() const override { return mailbox_.pending(); }
  std::uint32_t message_bell() const override { return pipes_.bell(); }
  void await_messages(std::uint32_t seen) override { mailbox_.await(seen); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout) override;
  void give_up(const GivenUp& why) override;

 private:
  // A collective under way.
  struct Call {
    Call(const HostsBackend& backend, const Collective& collective);
    Counts counts() const;  // Of each rank's part.

    const Collective& outer;
    const DType dtype;
    const Deadline deadline;  // Of all its steps.
    const ReduceOp sums;      // What steps combine by: of an average, the sum.
    const bool averages;
    const int ranks;
    const int root_host;
    const bool root_is_here;
    const int local_root;
  };

  // After an engine has failed, for the news of whose death it was.
  static constexpr std::chrono::milliseconds time_for_news{1000};
  // After a deadline, for those who know better who is missing: they look every 20 ms.
  static constexpr std::chrono::milliseconds time_for_names{200};
  // Beyond the collective's own time, so that whoever is late is named by those who wait for it at
  // the beginning, and not by those who wait for them.
  static constexpr std::chrono::milliseconds grace{3000};

  // How long to wait for another host, and whether to ask it then who is absent.
  struct Patience {
    Deadline deadline;
    bool asks = true;
  };

  void enter(const Collective& collective, Patience patience);
  std::vector<std::string> exchange(const std::string& mine, const Collective& collective,
                                    Patience patience);
  std::string hear(int host, const Collective& collective, Patience patience);
  std::string hear_from(int peer, const Collective& collective, Patience patience);
  void hear_all_pairs(const Collective& collective, Deadline deadline);
  void await_all(const Collective& collective);
  std::string describe_absent(const Collective& collective, int host) const;
  void ask_who_is_absent(const Collective& collective, int host);
  void share_on_host(std::vector<std::string>& said, const Collective& collective);
  void throw_if_over(const Collective& collective) const;
  std::string context(const Collective& collective) const;

  // A part of a buffer that travels at a time, and what of it this rank takes from host to host.
  struct Piece {
    Buffer data;
    std::size_t slot;  // Two neighbours have different ones.
    Counts slices;     // Elements, by local rank.
    Buffer mine;       // This rank's slice, in memory of ours.
  };
  static constexpr std::size_t slots = 2;
  class Crossing;  // One collective of an engine's: crossing.h.

  void by_engine_alone(const Call& call);
  void by_all_ranks(const Call& call);
  void all_reduce(const Call& call);
  void broadcast(const Call& call);
  void all_gather(const Call& call);
  void reduce_scatter(const Call& call);

  std::vector<Piece> pieces_of(const Call& call, std::size_t most) const;
  std::vector<Piece> sliced_pieces_of(const Call& call);
  template <class Before, class Cross, class After>
  void in_stages(const std::vector<Piece>& pieces, Before before, Cross cross, After after);

  static Collective step_of(const Call& call, Operation operation, const Buffer& input,
                            const Buffer& output, const Counts& counts, int root = 0);
  void on_host(const Call& call, Operation operation, const Buffer& input, const Buffer& output,
               const Counts& counts, int root = 0);
  std::unique_ptr<Crossing> crossing_of(const Call& call, Operation operation, const Piece& piece);
  void cross_slices(const Call& call, Operation operation, const Buffer& input,
                    const Buffer& output, const Counts& counts);
  void cross(const Call& call, EngineCommunicator& engine, const Collective& collective);
  void throw_if_explained(const Call& call) const;

  void make_engines();
  EngineCommunicator& slice_engine(const Call& call);
  EngineCommunicator& engine_of_all(const Call& call);
  std::unique_ptr<EngineCommunicator> make_engine(const Call& call, const std::vector<int>& members,
                                                  int rank, const std::string& what, Place local);

  const std::shared_ptr<HostsContext> context_;
  const std::vector<int> ranks_;  // Of the job, by rank of the group.
  const int rank_;
  const std::string group_;
  const std::chrono::milliseconds timeout_;
  const HostMap map_;
  const Place here_;
  const std::shared_ptr<ShmBackend> local_;
  const std::shared_ptr<LineGroup> lines_;
  HostsPipes pipes_;
  Mailbox mailbox_;
  std::vector<Signature> said_;  // By rank, of what all have entered last.
  // Which of kept_'s scratch a step uses: the first four for what it computes, and these, one for
  // each slot, for copies of a user's memory.
  static constexpr std::size_t staged_input = 4;
  static constexpr std::size_t staged_output = staged_input + slots;
  KeptMemory kept_;
  std::unique_ptr<EngineCommunicator> slice_engine_;  // Of the ranks that own the same slice.
  std::unique_ptr<EngineCommunicator> engine_of_all_;
};

}  // namespace lockstep
