// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "lockstep/comm/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/host/host_session.h"
#include "lockstep/comm/last_words.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/store/job_token.h"

namespace lockstep {
namespace {

void require_one_host(const LaunchEnvironment& who) {
  if (who.local_world_size != who.world_size)
    throw Error(Fault::unsupported,
                fmt::format("{} of {} ranks run on this host; ranks on several hosts are not "
                            "supported yet",
                            who.local_world_size, who.world_size));
}

// What two processes have in common when they can meet on an abstract Unix socket: the kernel, as it
// was booted, and the network namespace.
std::string meeting_place() {
  char net[64] = {};
  if (::readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = '\0';
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{} {} {}", host, boot, net);
}

// Rank 0 makes a name for the job that nobody can guess, and says where it is; the others learn
// both.
void meet_in_store(Store& store, LaunchEnvironment& who, std::string_view group,
                   Deadline deadline) {
  const std::string key = fmt::format("lockstep/{}/{}", who.job_id, group);
  const std::string here = meeting_place();
  if (who.rank == 0) store.set(key, fmt::format("{}\n{}", make_job_token().text(), here));
  const std::string said = store.wait(key, deadline);
  const auto end = said.find('\n');
  if (end == said.npos)
    throw Error(Fault::corrupt, fmt::format("the store's '{}' is not what rank 0 wrote", key));
  if (said.substr(end + 1) != here)
    throw Error(Fault::unsupported,
                fmt::format("rank {} is on another host or in another network namespace ({}) than "
                            "rank 0 ({}); ranks on several hosts are not supported yet",
                            who.rank, here, said.substr(end + 1)));
  who.job_id = said.substr(0, end);
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

  LaunchEnvironment who = options.environment ? *options.environment : read_environment();
  require_one_host(who);
  const std::lock_guard lock(mutex);
  require(current.expired(), "init_process_group: this process is in a group already");
  const std::string name = groups_made == 0 ? "world" : fmt::format("world#{}", groups_made + 1);
  if (options.store) meet_in_store(*options.store, who, name, in(options.timeout));
  auto session = std::make_shared<HostSession>(who, name, in(options.timeout));
  send_last_words_to(session->shared_page(), who.rank);
  ProcessGroup world = make_world(session, name, options.timeout);
  current = session;
  ++groups_made;
  log(LogLevel::info, fmt::format("rank {} of {} joined group {}, started by {}, backend shm",
                                  who.rank, who.world_size, name, who.launcher));
  return world;
}

}  // namespace lockstep
