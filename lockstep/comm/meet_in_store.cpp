// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/meet_in_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/host_name.h"
#include "lockstep/comm/store/job_token.h"
#include "lockstep/comm/store/socket_address.h"
#include "lockstep/comm/store/tcp_store.h"

namespace lockstep {
namespace {

// What two processes have in common when they can meet on an abstract Unix socket: the kernel, as it
// was booted, and the network namespace.
std::string meeting_place() {
  char net[64] = {};
  if (::readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = '\0';
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  return fmt::format("{} {} {}", host_name(), boot, net);
}

}  // namespace

std::string meet_in_store(Store& store, const LaunchEnvironment& who, std::string_view group,
                          Deadline deadline) {
  // A store of the user's may outlive a start of the job.
  const std::string key = fmt::format("lockstep/{}/{}/{}", who.job_id, who.attempt, group);
  const std::string here = meeting_place();
  if (who.rank == 0) store.set(key, fmt::format("{}\n{}", make_job_token().text(), here));
  const std::string said = store.wait(key, deadline);
  const auto end = said.find('\n');
  if (end == said.npos)
    throw Error(Fault::corrupt, fmt::format("the store's '{}' is not what rank 0 wrote", key));
  if (said.substr(end + 1) != here)
    throw Error(Fault::unsupported,
                fmt::format("rank {} is on {} and rank 0 on {}: not one host with one network "
                            "namespace; ranks on several hosts are not supported yet",
                            who.rank, here, said.substr(end + 1)));
  return said.substr(0, end);
}

std::unique_ptr<Store> connect_to_agents_store(const LaunchEnvironment& who, AgentLine& agent,
                                               Deadline deadline) {
  const auto address = host_and_port(who.store);
  require(address.has_value(),
          [&] { return fmt::format("LOCKSTEP_STORE='{}' is not HOST:PORT", who.store); });
  TcpStoreOptions options{.host = address->first,
                          .port = address->second,
                          .member = {.job_id = who.job_id,
                                     .rank = who.rank,
                                     .world_size = who.world_size,
                                     .attempt = who.attempt},
                          .token = agent.job_token(deadline)};
  options.connect_timeout = options.timeout =
      std::max(std::chrono::milliseconds(0),
               std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
  return std::make_unique<TcpStore>(options);
}

}  // namespace lockstep
