// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <mutex>

#include "lockstep/comm/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/host/host_session.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {
namespace {

void require_one_host(const LaunchEnvironment& who) {
  if (who.local_world_size != who.world_size)
    throw Error(Fault::unsupported,
                fmt::format("{} of {} ranks run on this host; ranks on several hosts are not "
                            "supported yet",
                            who.local_world_size, who.world_size));
}

ProcessGroup make_world(std::shared_ptr<HostSession> session, const std::string& name,
                        std::chrono::milliseconds timeout) {
  auto peers = std::make_shared<HostPeers>(session);
  const std::weak_ptr<HostPeers> weak = peers;
  ProcessGroup::State::Parts parts;
  parts.rank = peers->rank();
  parts.size = peers->size();
  parts.name = name;
  parts.timeout = timeout;
  parts.activity = {session, &session->page().activity(session->rank())};
  parts.finish = [weak] {
    if (const auto strong = weak.lock()) strong->finish();
  };
  parts.abandon = [weak] {
    if (const auto strong = weak.lock()) strong->abandon();
  };
  parts.backend = std::make_unique<ShmBackend>(std::move(peers), name, timeout);
  return GroupAccess::make(std::move(parts));
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<HostSession> current;
  static int groups_made = 0;

  const LaunchEnvironment who = options.environment ? *options.environment : read_environment();
  require_one_host(who);
  const std::lock_guard lock(mutex);
  require(current.expired(), "init_process_group: this process is in a group already");
  const std::string name = ++groups_made == 1 ? "world" : fmt::format("world#{}", groups_made);
  auto session = std::make_shared<HostSession>(who, name, in(options.timeout));
  current = session;
  ProcessGroup world = make_world(std::move(session), name, options.timeout);
  log(LogLevel::info, fmt::format("rank {} of {} joined group {}, started by {}, backend shm",
                                  who.rank, who.world_size, name, who.launcher));
  return world;
}

}  // namespace lockstep
