// One rank's view of a group on several hosts, and steps of its collectives among ranks of one
// host.
//
// Thread safety: after construction, any thread may call the const members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/plugin_communicator.h"
#include "lockstep/comm/hosts/failure_notices.h"
#include "lockstep/comm/hosts/host_map.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/tcp/connections.h"

namespace lockstep::comm {

// Lost ranks of other hosts. Thread safety: any thread.
class LostRanks {
 public:
  void add(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_.insert(rank);
  }
  bool contains(int rank) const {
    const std::lock_guard lock(mutex_);
    return ranks_.contains(rank);
  }

 private:
  mutable std::mutex mutex_;
  std::set<int> ranks_;
};

// Shared by all groups. Ranks are those of the job.
struct HostsContext {
  std::string backend;             // InitOptions::backend.
  std::shared_ptr<HostPeers> job;  // All ranks; those of this host share memory.
  std::vector<int> places;         // The first rank on the same host, by rank.
  bool shares_memory = true;       // Otherwise each rank counts as a host.
  std::vector<RemoteRank> ranks;   // By rank; address is empty for this rank.
  CommunicatorOptions engine;      // All but the members, this rank's index and the name.
  std::shared_ptr<LostRanks> lost = std::make_shared<LostRanks>();
  std::unique_ptr<Connections> connections;
  std::unique_ptr<FailureNotices> notices;
};

class HostsGroup {
 public:
  // Collective over `ranks` of the job; `rank` is this one's index. Calls `watch`, which may throw,
  // while ranks of this host wait for each other.
  HostsGroup(std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank,
             std::string name, std::chrono::milliseconds timeout, std::function<void()> watch);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const HostMap& map() const { return map_; }

  // This rank among those on its host, even if these do not share memory.
  Backend::Place place() const { return place_; }

  const std::shared_ptr<HostsContext>& context() const { return context_; }
  const std::shared_ptr<ShmBackend>& local() const { return local_; }
  const std::shared_ptr<Channels>& channels() const { return channels_; }

  std::vector<int> in_the_job(const std::vector<int>& ranks) const;
  const RemoteRank& who(int rank) const;

  std::string describe(const Collective& collective) const;

  void throw_if_over(const Collective& collective) const;

  // Waits up to 1 s for the report of a death, and throws it: an engine fails when a peer dies,
  // often before the report.
  void throw_if_explained(const Collective& collective) const;

 private:
  const std::shared_ptr<HostsContext> context_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::string name_;
  const HostMap map_;
  const Backend::Place place_;
  const std::shared_ptr<ShmBackend> local_;
  const std::shared_ptr<Channels> channels_;
};

struct HostsCall {
  // Both arguments must outlive it.
  HostsCall(const HostsGroup& group, const Collective& collective);

  Counts counts() const;

  // A step of the collective. `counts` must outlive the result.
  Collective step(Operation operation, const Buffer& input, const Buffer& output,
                  const Counts& counts, int root = 0) const;

  // Completes a step on this host. Blocking, Errors: as Backend::run().
  void on_host(Operation operation, const Buffer& input, const Buffer& output, const Counts& counts,
               int root = 0) const;

  const HostsGroup& group;
  const Collective& outer;
  const DType dtype;
  const Deadline deadline;  // For all steps together.
  const ReduceOp sums;      // The steps' operation; sum for an average.
  const bool averages;
  const int root_host;
  const bool root_is_here;
  const int local_root;
};

}  // namespace lockstep::comm
