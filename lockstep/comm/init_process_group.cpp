// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/engine/device_backend.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/hosts/device_engine.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/comm/hosts/job_context.h"
#include "lockstep/comm/hosts/job_store.h"
#include "lockstep/comm/hosts/join_hosts.h"
#include "lockstep/comm/hosts/late_ranks.h"
#include "lockstep/comm/hosts/left_worlds.h"
#include "lockstep/comm/hosts/rendezvous.h"
#include "lockstep/comm/init_group.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/job/host_session.h"
#include "lockstep/job/record.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep {
namespace {

LaunchEnvironment identify(const InitOptions& options) {
  if (options.environment) return *options.environment;
  if (options.mpi_communicator == nullptr) return read_environment();
  const MpiWorld world = identify_by_mpi(options.mpi_communicator);
  LaunchEnvironment who;
  who.launcher = "MPI";
  who.rank = world.rank;
  who.world_size = world.size;
  who.local_world_size = 0;  // Unknown.
  return who;
}

// This process's worlds; its fork()ed children have none.
class Worlds {
 public:
  void require_not_forked() {
    if (owner_ == 0 || owner_ == this_process()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    require(lock.owns_lock() && std::ranges::none_of(all_, &World::lives), [&] {
      return fmt::format(
          "init_process_group: this process was fork()ed by process {}, which is in a group: use "
          "exec()",
          owner_.load());
    });
  }

  void require_all_have_names() {
    const std::lock_guard lock(mutex_);
    require(std::ranges::none_of(
                all_, [](const World& world) { return !world.has_name && world.lives(); }),
            "init_process_group: this process is in a group already");
  }

  void add(const std::shared_ptr<HostSession>& session, bool has_name) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const World& world) { return !world.lives(); });
    all_.push_back({session, has_name});
    owner_ = this_process();
  }

 private:
  struct World {
    std::weak_ptr<HostSession> session;
    bool has_name = false;

    bool lives() const {
      const auto strong = session.lock();
      return strong && !strong->has_left();
    }
  };

  std::atomic<pid_t> owner_{0};
  std::mutex mutex_;
  std::vector<World> all_;
};

// A program that ignores `lockstep plan` would train instead of being measured.
void require_no_plan() {
  require(read_variable("LOCKSTEP_PLAN") == nullptr,
          "init_process_group: `lockstep plan` started this program, which has to call "
          "lockstep::plan_if_asked() before init_process_group()");
}

// Whether the launcher's variables suffice for a rendezvous on this host. An agent takes
// precedence.
bool is_on_one_host(const LaunchEnvironment& who, const InitOptions& options) {
  const bool told = who.local_world_size == who.world_size || (who.agent_fd && who.store.empty());
  return told && !options.store && options.mpi_communicator == nullptr &&
         read_variable("LOCKSTEP_HOST_ID") == nullptr;
}

bool is_simple(const LaunchEnvironment& who, const InitOptions& options) {
  return is_on_one_host(who, options) && comm::is_shared_memory(comm::backend_asked_for(options));
}

// Whether MASTER_ADDR or MASTER_PORT is missing, which is no error on one host.
bool lacks_master(const LaunchEnvironment& who, const InitOptions& options) {
  return who.launcher == "environment" && who.master.empty() && is_simple(who, options);
}

// Reports errors that living ranks caused to the host, the agent and the log.
template <class Act>
auto reporting_culprits(comm::RankContext& rank_context, int rank,
                        std::chrono::milliseconds timeout, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    if (error.ranks().empty()) throw;
    const std::string context = fmt::format("init_process_group on rank {}", rank);
    rank_context.report_break(comm::blame_in(error, rank, context, timeout));
    throw;
  }
}

// Ranks on one host compare settings there, even for an engine. `number` counts this process's
// groups from 1.
comm::JoinedHosts join(LaunchEnvironment& who, const InitOptions& options, const std::string& name,
                       int number, comm::LateRanks& late) {
  if (!is_on_one_host(who, options)) return comm::join_hosts(who, options, name, late);
  late.expect_at(fmt::format(
      "this host ({}), where job '{}' expects all of its ranks{}", host_name(), who.job_id,
      lacks_master(who, options) ? ", as MASTER_ADDR or MASTER_PORT is not set" : ""));
  HostMeeting meeting =
      who.agent_fd ? HostMeeting::through_agent(who) : HostMeeting::on_socket(who, name);
  meeting.announced = {number, who.world_size, comm::backend_asked_for(options)};
  const Deadline deadline = in(options.timeout);
  auto session =
      std::make_shared<HostSession>(meeting, deadline, [&] { late.look_for_rank_0(who.job_id); });
  send_exit_report_to(session->shared_page(), session->rank());
  const bool meets_here = is_simple(who, options);
  comm::JobContext rank_context(session);
  reporting_culprits(rank_context, session->rank(), options.timeout, [&] {
    meets_here ? comm::require_agreement(*session)
               : comm::await_agreement(*session, deadline, late);
  });
  if (meets_here)
    return {.session = std::move(session), .backend = "shm", .why = "all ranks are on this host"};
  session->withdraw();
  session.reset();
  return comm::join_hosts(who, options, name, late);
}

std::unique_ptr<comm::Backend> make_backend(const comm::JoinedHosts& joined,
                                            const std::string& name,
                                            std::chrono::milliseconds timeout,
                                            comm::LateRanks& late) {
  std::vector<int> ranks(static_cast<std::size_t>(joined.session->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int rank = joined.session->rank();
  std::unique_ptr<comm::Backend> backend;
  const auto watch = [&] {
    comm::require_agreement(*joined.session);
    comm::look_here(*joined.session, late);
  };
  if (joined.context)
    backend = std::make_unique<comm::HostsBackend>(joined.context, ranks, rank, name, timeout);
  else
    backend = std::make_unique<comm::ShmBackend>(std::make_shared<comm::HostPeers>(joined.session),
                                                 name, timeout, watch);
  comm::DeviceEngineOptions device;
  device.session = joined.session;
  device.world_size = joined.session->size();
  if (joined.context) {
    device.store = joined.context->engine.store;
    device.keys = joined.context->engine.keys;
    device.interface = joined.context->engine.interface;
  }
  comm::DeviceMembers members{name, std::move(ranks), rank};
  return std::make_unique<comm::DeviceBackend>(std::move(backend), std::move(members),
                                               comm::make_device_engine(device));
}

ProcessGroup make_world(const comm::JoinedHosts& joined,
                        std::shared_ptr<comm::RankContext> rank_context, const std::string& name,
                        std::chrono::milliseconds timeout, std::chrono::milliseconds call_timeout,
                        comm::LateRanks& late) {
  ProcessGroup::State::Parts parts;
  parts.identity = {.name = name,
                    .rank = joined.session->rank(),
                    .size = joined.session->size(),
                    .timeout = call_timeout};
  // An earlier group requested it.
  if (keeps_preemption_signals()) rank_context->expect_preemption();
  parts.rank_context = std::move(rank_context);
  parts.backend = make_backend(joined, name, timeout, late);
  return GroupAccess::make(std::move(parts));
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  return comm::init_group(options, options.timeout);
}

ProcessGroup comm::init_group(const InitOptions& options, std::chrono::milliseconds call_timeout) {
  static Worlds worlds;
  static std::mutex without_name;
  static int tries = 0;  // A failed attempt may have left values in a store.

  report_uncaught_exceptions();
  require_known_log_level();
  require_no_plan();
  const bool has_name = !options.name.empty();
  require(!has_name || options.store != nullptr,
          "init_process_group: a world with a name needs InitOptions::store");
  LaunchEnvironment who = identify(options);
  const LaunchEnvironment launched = who;  // Joining may give this start another name.
  worlds.require_not_forked();
  comm::let_go_of_left_worlds();
  std::unique_lock lock(without_name, std::defer_lock);
  int number = 1;
  if (!has_name) {
    require(
        lock.try_lock(),
        "init_process_group: another thread is calling it, or was when this process was fork()ed");
    worlds.require_all_have_names();
    number = ++tries;
  }
  const std::string name = has_name     ? options.name
                           : number > 1 ? fmt::format("world#{}", number)
                                        : std::string("world");
  comm::LateRanks late(who.rank, options.warn_after);
  try {
    const comm::JoinedHosts joined = join(who, options, name, number, late);
    const auto rank_context = std::make_shared<comm::JobContext>(joined.session, joined.context);
    ProcessGroup world = reporting_culprits(*rank_context, who.rank, options.timeout, [&] {
      return make_world(joined, rank_context, name, options.timeout, call_timeout, late);
    });
    worlds.add(joined.session, has_name);
    if (!has_name || TimelineRecorder::current() == nullptr)
      comm::record_timeline(world, launched.agent_fd ? launched : who);
    log(LogLevel::info,
        fmt::format("rank {} of {} joined group {}, started by {}, backend {} ({})", who.rank,
                    who.world_size, name, who.launcher, joined.backend, joined.why));
    return world;
  } catch (const Error& error) {
    if (error.fault() != Fault::timeout || !lacks_master(who, options)) throw;
    throw Error(
        Fault::timeout,
        fmt::format(
            "{}; all {} ranks were expected on this host, as MASTER_ADDR or MASTER_PORT is not set",
            bare_text(error), who.world_size));
  }
}

}  // namespace lockstep
