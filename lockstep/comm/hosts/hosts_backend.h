// A backend for ranks on several hosts (hosts_collectives.h): all operations on CPU buffers.
// Connections: docs/internals/hosts.md.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/hosts/hosts_collectives.h"
#include "lockstep/comm/hosts/hosts_engines.h"
#include "lockstep/comm/hosts/hosts_entries.h"
#include "lockstep/comm/hosts/hosts_group.h"
#include "lockstep/comm/hosts/hosts_pipes.h"

namespace lockstep::comm {

class HostsBackend final : public Backend {
 public:
  // Collective over `ranks` of the job; `rank` is this one's index. Calls `watch`, which may throw,
  // while ranks wait for each other.
  HostsBackend(
      std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank, std::string name,
      std::chrono::milliseconds timeout, const std::function<void()>& watch = [] {});

  std::string_view name() const override { return group_.context()->backend; }
  Place local() const override { return group_.place(); }
  bool native(Operation operation) const override;
  void enter(const Collective& collective) override { entries_.enter(collective); }
  std::optional<int> last_to_enter() const override { return entries_.last_to_enter(); }
  const Signature& entered(int rank) const override { return entries_.entered(rank); }
  std::vector<std::string> labels(const Collective& collective) override {
    return entries_.labels(collective);
  }
  void run(const Collective& collective) override { collectives_.run(collective); }
  Allocation allocate(const Collective& collective) override;
  RegisteredMemory allocate_local(std::size_t bytes) override {
    return group_.local()->allocate_local(bytes);
  }
  Pipes& pipes() override { return pipes_; }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) override;
  void leave() override;
  void abort(const AbortReason& why) override;

 private:
  const HostsGroup group_;
  HostsPipes pipes_;
  HostsEntries entries_;
  KeptMemory memory_;
  HostsEngines engines_;
  HostsCollectives collectives_;
};

}  // namespace lockstep::comm
