// A backend for ranks on several hosts (hosts_collectives.h): all operations on CPU buffers.
// Call descriptions, deaths, aborts and messages use Lockstep's own connections
// (docs/internals/hosts.md).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/mailbox.h"
#include "lockstep/comm/hosts/hosts_collectives.h"
#include "lockstep/comm/hosts/hosts_engines.h"
#include "lockstep/comm/hosts/hosts_entries.h"
#include "lockstep/comm/hosts/hosts_group.h"
#include "lockstep/comm/hosts/hosts_pipes.h"

namespace lockstep::comm {

class HostsBackend final : public Backend {
 public:
  // Collective over `ranks` of the job; `rank` is this one's index. `watch` is called while ranks
  // wait for each other, and may throw.
  HostsBackend(
      std::shared_ptr<HostsContext> context, std::vector<int> ranks, int rank, std::string name,
      std::chrono::milliseconds timeout, const std::function<void()>& watch = [] {});

  std::string_view name() const override { return group_.context()->backend; }
  Place local() const override { return group_.place(); }
  bool native(Operation operation, DType dtype, ReduceOp op) const override;
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
  void post(std::shared_ptr<Message> message) override { mailbox_.post(std::move(message)); }
  void progress() override { mailbox_.progress(); }
  void drop_messages() override { mailbox_.drop(); }
  std::size_t messages_pending() const override { return mailbox_.pending(); }
  std::uint32_t message_bell() const override { return pipes_.bell(); }
  void await_messages(std::uint32_t seen) override { mailbox_.await(seen); }
  std::unique_ptr<Backend> among(const std::vector<int>& ranks, const std::string& group,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void()>& watch) override;
  void leave() override;
  void abort(const AbortReason& why) override;

 private:
  const HostsGroup group_;
  HostsPipes pipes_;
  Mailbox mailbox_;
  HostsEntries entries_;
  KeptMemory memory_;
  HostsEngines engines_;
  HostsCollectives collectives_;
};

}  // namespace lockstep::comm
