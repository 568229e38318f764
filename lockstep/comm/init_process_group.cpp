// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <mutex>

#include "lockstep/comm/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/host/agent_line.h"
#include "lockstep/comm/host/host_session.h"
#include "lockstep/comm/last_words.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/meet_in_store.h"
#include "lockstep/comm/preemption.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {
namespace {

// Ranks of one agent, or of a launcher that has none. Where the user gives a store, they meet under
// the name that it holds.
std::shared_ptr<HostSession> join_host(const LaunchEnvironment& who, const InitOptions& options,
                                       const std::string& name, Deadline deadline) {
  std::string secret;
  if (options.store) secret = meet_in_store(*options.store, who, name, deadline);
  return std::make_shared<HostSession>(
      who.agent_fd ? HostMeeting::through_agent(who) : HostMeeting::on_socket(who, name, secret),
      deadline);
}

// Ranks of several agents. No agent reaches all of them, so they meet as if they had none; but each
// one's agent is shown what they do.
std::shared_ptr<HostSession> join_across_agents(const LaunchEnvironment& who,
                                                const InitOptions& options, const std::string& name,
                                                Deadline deadline) {
  require(who.agent_fd.has_value(), "LOCKSTEP_STORE is set, but not LOCKSTEP_AGENT_FD");
  AgentLine agent(*who.agent_fd);
  std::shared_ptr<Store> store = options.store;
  if (!store) store = connect_to_agents_store(who, agent, deadline);
  const std::string secret = meet_in_store(*store, who, name, deadline);
  store.reset();
  auto session = std::make_shared<HostSession>(HostMeeting::on_socket(who, name, secret), deadline);
  agent.offer_session_page(session->page());
  return session;
}

std::shared_ptr<HostSession> join(const LaunchEnvironment& who, const InitOptions& options,
                                  const std::string& name) {
  const Deadline deadline = in(options.timeout);
  if (who.local_world_size == who.world_size) return join_host(who, options, name, deadline);
  if (!who.store.empty()) return join_across_agents(who, options, name, deadline);
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
  const std::weak_ptr<HostSession> host = session;
  parts.rank_wide->expect_preemption = [host] {
    if (const auto strong = host.lock()) strong->page().expect_preemption(strong->rank());
  };
  parts.rank_wide->agree_on_preemption = [host] {
    if (const auto strong = host.lock()) strong->page().agree_on_preemption();
  };
  if (keeps_preemption_signals()) parts.rank_wide->expect_preemption();  // Since an earlier group.
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
  const std::lock_guard lock(mutex);
  require(current.expired(), "init_process_group: this process is in a group already");
  const std::string name = groups_made == 0 ? "world" : fmt::format("world#{}", groups_made + 1);
  auto session = join(who, options, name);
  send_last_words_to(session->shared_page(), who.rank);
  ProcessGroup world = make_world(session, name, options.timeout);
  current = session;
  ++groups_made;
  log(LogLevel::info, fmt::format("rank {} of {} joined group {}, started by {}, backend shm",
                                  who.rank, who.world_size, name, who.launcher));
  return world;
}

}  // namespace lockstep
