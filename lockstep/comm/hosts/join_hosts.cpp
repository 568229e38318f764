// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/join_hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/hosts/choose_backend.h"
#include "lockstep/comm/hosts/job_store.h"
#include "lockstep/comm/hosts/rendezvous.h"
#include "lockstep/comm/hosts/watched_store.h"
#include "lockstep/comm/shm/host_peers.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/network.h"
#include "lockstep/job/record.h"

namespace lockstep::comm {
namespace {

std::string option_or_variable(const std::string& option, const char* variable) {
  if (!option.empty()) return option;
  const char* told = read_variable(variable);
  return told == nullptr ? "" : told;
}

// One store serves all groups of a process: otherwise a fast rank could reach the old store before
// rank 0 has left it. One thread at a time.
JobStore open_or_keep_store(LaunchEnvironment& who, const InitOptions& options,
                            const std::string& interface, Deadline deadline, LateRanks& late) {
  if (options.store || options.mpi_communicator != nullptr)
    return open_job_store(who, options, interface, deadline, late);
  static std::optional<JobStore> kept;
  static std::string job_id;
  if (!kept) {
    kept = open_job_store(who, options, interface, deadline, late);
    job_id = who.job_id;
  }
  who.job_id = job_id;
  return *kept;
}

std::map<std::string, std::string> look_at_engines(const std::string& backend, bool under_mpi) {
  std::map<std::string, std::string> engines;
  for (const std::string& name : engines_for(backend, under_mpi))
    engines.emplace(name, why_no_engine(name));
  return engines;
}

// Under a name known only to ranks that exchanged their RankInfo. `job`, for messages, is the
// launcher's id or, if empty, this start's.
std::shared_ptr<HostSession> meet_here(const LaunchEnvironment& who, const std::string& job,
                                       const std::string& group, const RankTable& table,
                                       const std::vector<int>& places, Deadline deadline) {
  const int place = places[static_cast<std::size_t>(who.rank)];
  HostMeeting meeting =
      HostMeeting::on_socket(who, group, fmt::format("{} {}", table.secret, place));
  if (!job.empty()) meeting.job_id = job;
  meeting.opens = place == who.rank;
  meeting.is_alone = std::count(places.begin(), places.end(), place) == 1;
  auto session = std::make_shared<HostSession>(meeting, deadline);
  send_exit_report_to(session->shared_page(), session->rank());
  if (who.agent_fd) AgentConnection(*who.agent_fd).offer_session_page(session->page());
  return session;
}

// How this rank's number of ranks contradicts its launcher's. It continues with the launcher's, so
// that all ranks receive the contradiction.
std::string contradiction(LaunchEnvironment& who, Deadline deadline) {
  if (!who.agent_fd || who.store.empty()) return {};
  const int told =
      std::exchange(who.world_size, AgentConnection(*who.agent_fd).world_size(deadline));
  if (told == who.world_size) return {};
  auto text = fmt::format("expects {} ranks, the launcher has started {} (WORLD_SIZE)", told,
                          who.world_size);
  if (who.rank < who.world_size) return text;
  throw Error(Fault::mismatch, fmt::format("rank {} {}", who.rank, text));
}

const void* world_for(const std::string& engine, const LaunchEnvironment& who,
                      const InitOptions& options) {
  if (engine != "mpi") return nullptr;
  const MpiWorld world = identify_by_mpi(options.mpi_communicator);
  if (world.rank == who.rank && world.size == who.world_size) return world.handle;
  throw Error(Fault::mismatch,
              fmt::format("{} assigns rank {} of {}, MPI assigns rank {} of {}", who.launcher,
                          who.rank, who.world_size, world.rank, world.size));
}

std::vector<RemoteRank> remote_ranks(const HostsContext& context, int me) {
  std::vector<RemoteRank> remote;
  const auto place = [&](int rank) { return context.places[static_cast<std::size_t>(rank)]; };
  for (const RemoteRank& one : context.ranks)
    if (one.rank != me && !(context.shares_memory && place(one.rank) == place(me)))
      remote.push_back(one);
  return remote;
}

std::unique_ptr<Connections> open_connections(const LaunchEnvironment& who, const JobStore& store,
                                              const NetworkInterface& interface,
                                              const std::shared_ptr<HostSession>& session,
                                              const std::shared_ptr<LostRanks>& lost) {
  const std::weak_ptr<HostSession> weak = session;
  return std::make_unique<Connections>(
      Connections::Options{.member = {.job_id = who.job_id,
                                      .rank = who.rank,
                                      .world_size = who.world_size,
                                      .attempt = who.attempt},
                           .token = store.token,
                           .listen_on = interface.address,
                           .on_failure = [weak, lost](const Failure& failure) {
                             if (!failure.fault && !failure.left) lost->add(failure.rank);
                             if (const auto strong = weak.lock()) strong->page().report(failure);
                           }});
}

void describe_job(HostsContext& context, const BackendChoice& choice, const RankTable& table,
                  const std::shared_ptr<HostSession>& session) {
  context.backend = choice.name;
  context.job = std::make_shared<HostPeers>(session);
  context.places = choice.places;
  context.shares_memory = choice.shares_memory;
  for (const RankInfo& info : table.ranks)
    context.ranks.push_back({info.rank, info.host, info.pid, info.address});
}

void connect_hosts(HostsContext& context, const std::shared_ptr<HostSession>& session, int me,
                   Deadline deadline, const std::function<void()>& look) {
  context.connections->connect(remote_ranks(context, me), deadline, [&] {
    session->throw_if_peer_lost("init_process_group: connecting to the ranks of other hosts");
    look();
  });
  std::vector<bool> is_here;
  for (const int place : context.places)
    is_here.push_back(place == context.places[static_cast<std::size_t>(me)]);
  context.notices = std::make_unique<FailureNotices>(session, *context.connections, is_here);
}

}  // namespace

std::string backend_asked_for(const InitOptions& options) {
  return option_or_variable(options.backend, "LOCKSTEP_BACKEND");
}

JoinedHosts join_hosts(LaunchEnvironment& who, const InitOptions& options, const std::string& group,
                       LateRanks& late) {
  require(!options.store || options.mpi_communicator == nullptr,
          "init_process_group: give `store` or `mpi_communicator`, not both");
  const Deadline deadline = in(options.timeout);
  const std::string contradicted = contradiction(who, deadline);
  const std::string job = who.job_id;
  who.job_id = member_id(who.job_id);
  const std::string backend = backend_asked_for(options);
  const std::string wanted = option_or_variable(options.interface, "LOCKSTEP_INTERFACE");
  const bool under_mpi = options.mpi_communicator != nullptr || is_mpi_launcher(who.launcher);
  const auto engines = look_at_engines(backend, under_mpi);
  // The store may have values of earlier starts.
  const bool outlives = who.launcher == "torchrun" || !options.name.empty();
  if (outlives) who.attempt = 0;  // Each of torchrun's agents has its own count.
  const JobStore store = open_or_keep_store(who, options, wanted, deadline, late);
  late.expect_at(store.place);
  if (outlives)
    who.job_id = fmt::format("{} {}", options.name.empty() ? "torchrun" : "world",
                             agree_on_start(*store.store, fmt::format("lockstep/start/{}/", group),
                                            who.rank, who.world_size, deadline, late));
  RankInfo mine{.rank = who.rank,
                .pid = ::getpid(),
                .host = host_name(),
                .place = this_place(),
                .backend = backend,
                .engines = engines,
                .contradiction = contradicted};
  const std::string keys = fmt::format("lockstep/{}/{}/{}/", who.job_id, who.attempt, group);
  RankTable table = exchange_rank_info(*store.store, keys, mine, who.world_size, deadline, late);
  const BackendChoice choice = choose_backend(table.ranks);
  JoinedHosts joined{.session = meet_here(who, job, group, table, choice.places, deadline),
                     .backend = choice.name,
                     .why = choice.why};
  if (choice.engine.empty()) return joined;

  const bool told = who.local_world_size == who.world_size;
  const bool found = std::ranges::count(choice.places, choice.places.front()) == who.world_size;
  const bool one_host = (told || (found && store.host.empty())) && wanted.empty();
  const NetworkInterface interface = choose_interface(wanted, one_host ? "127.0.0.1" : store.host);
  joined.why += fmt::format("; by {} {}", interface.name, interface.address);
  auto context = std::make_shared<HostsContext>();
  context->connections = open_connections(who, store, interface, joined.session, context->lost);
  mine.address = context->connections->address();
  table = exchange_rank_info(*store.store, keys + "lines/", mine, who.world_size, deadline, late);
  describe_job(*context, choice, table, joined.session);
  context->engine = {.engine = &open_engine(choice.engine),
                     .world_size = who.world_size,
                     .interface = interface,
                     .store = store.store,
                     .world = world_for(choice.engine, who, options),
                     .keys = keys + "engine/"};
  const auto* const watched = dynamic_cast<const WatchedStore*>(options.store.get());
  connect_hosts(*context, joined.session, who.rank, deadline, [&] {
    if (watched != nullptr) watched->look();
  });
  joined.context = std::move(context);
  return joined;
}

}  // namespace lockstep::comm
