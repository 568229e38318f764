// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/job_store.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/network.h"
#include "lockstep/job/store/foreign_store.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

// LOCKSTEP_JOB_TOKEN can be read once, but a process may have several groups.
const std::optional<JobToken>& token_of_environment() {
  static const std::optional<JobToken> token = [] {
    auto read = read_job_token();
    const auto& kept = secret_of_environment();
    return read || !kept ? read : JobToken(kept->text());
  }();
  return token;
}

// An agent gives its token once; later groups, which have another store, use it too.
std::optional<JobToken> token_of(const LaunchEnvironment& who, Deadline deadline) {
  static std::mutex mutex;
  static std::optional<JobToken> of_agent;
  if (token_of_environment()) return token_of_environment();
  const std::lock_guard lock(mutex);
  if (!of_agent && who.agent_fd && !who.store.empty())
    of_agent = AgentConnection(*who.agent_fd).job_token(deadline);
  return of_agent;
}

TcpStoreOptions options_for(const LaunchEnvironment& who, const std::string& host, int port,
                            const std::optional<JobToken>& token, Deadline deadline) {
  return {.host = host,
          .port = port,
          .member = {.job_id = who.job_id,
                     .rank = who.rank,
                     .world_size = who.world_size,
                     .attempt = who.attempt},
          .token = token,
          .connect_timeout = until(deadline),
          .timeout = until(deadline)};
}

std::string store_at(const std::string& address) { return "the store at " + address; }

std::pair<std::string, int> address_of(const std::string& text, std::string_view what) {
  const auto address = host_and_port(text);
  require(address.has_value(), [&] { return fmt::format("{} '{}' is not HOST:PORT", what, text); });
  return *address;
}

// Rank 0's message by MPI. Each of a job's MPI communicators gets its own name for the job.
struct Announcement {
  char problem[512];  // Why there is no store; otherwise empty.
  char host[64];
  std::int32_t port;
  char job_id[64];
  char token[64];

  ~Announcement() { OPENSSL_cleanse(token, sizeof token); }
};

template <std::size_t n>
void copy_text(char (&to)[n], std::string_view text) {
  check(text.size() < n, "the announcement of rank 0 is too long");
  to[text.copy(to, n - 1)] = '\0';
}

void tell_all(const void* world, Announcement& announcement) {
  lockstep_engine_error error{};
  if (open_engine("mpi").abi->tell_all(world, &announcement, sizeof announcement, &error) != 0)
    throw Error(static_cast<Fault>(error.fault), fmt::format("mpi: {}", error.text));
}

// Where rank 0 listens for ranks that connect to `host`. In its own /etc/hosts, a host's name often
// means loopback.
std::string listening_address(const std::string& host, const std::string& interface) {
  for (const SocketAddress& address : resolve(host, 1)) {
    std::string text = host_and_port(to_text(address))->first;
    if (!address.is_loopback() || text == host || host == "localhost") return text;
  }
  return choose_interface(interface, "").address;
}

JobStore meet_by_mpi(LaunchEnvironment& who, const void* communicator, const std::string& interface,
                     Deadline deadline) {
  const MpiWorld world = identify_by_mpi(communicator);
  if (world.rank != who.rank || world.size != who.world_size)
    throw Error(Fault::mismatch,
                fmt::format("{} assigns rank {} of {}, MPI assigns rank {} of {}", who.launcher,
                            who.rank, who.world_size, world.rank, world.size));
  Announcement announced{};
  std::shared_ptr<ServedStore> served;
  std::exception_ptr failure;
  JobStore made;
  if (who.rank == 0) {
    try {
      made.token = make_job_token();
      const std::string address = choose_interface(interface, "").address;
      who.job_id = fmt::format("mpi {}", make_job_token().text().substr(0, 24));
      served = std::make_shared<ServedStore>(options_for(who, address, 0, made.token, deadline));
      copy_text(announced.host, address);
      announced.port = served->server.port();
      copy_text(announced.job_id, who.job_id);
      copy_text(announced.token, made.token->text());
    } catch (const Error& error) {  // The others wait in MPI, which has no deadline.
      failure = std::current_exception();
      copy_text(announced.problem, bare_text(error).substr(0, sizeof announced.problem - 1));
    }
  }
  tell_all(world.handle, announced);
  if (failure) std::rethrow_exception(failure);
  if (announced.problem[0] != 0)
    throw Error(Fault::aborted, fmt::format("rank 0: {}", clean_text(announced.problem)));
  made.host = announced.host;
  made.place = store_at(to_text(made.host, announced.port));
  if (served) {
    made.store = {served, &served->store};
    return made;
  }
  who.job_id = announced.job_id;
  made.token = JobToken(announced.token);
  made.store =
      std::make_shared<TcpStore>(options_for(who, made.host, announced.port, made.token, deadline));
  return made;
}

JobStore meet_at_master(const LaunchEnvironment& who, const std::string& interface,
                        Deadline deadline, comm::LateRanks& late) {
  const auto [host, port] = address_of(who.master, "the job's master address");
  JobStore made{.token = token_of(who, deadline), .host = host, .place = store_at(who.master)};
  // On all ranks: others would wait for a store that rank 0 refuses.
  if (!made.token)
    for (const SocketAddress& address : resolve(host, port))
      require_protection(address, host, false, "the job's store");
  if (who.rank == 0) {
    const TcpStoreOptions mine =
        options_for(who, listening_address(host, interface), port, made.token, deadline);
    auto served = std::make_shared<ServedStore>(mine);
    made.store = {served, &served->store};
  } else {
    TcpStoreOptions mine = options_for(who, host, port, made.token, deadline);
    late.expect_at(made.place + ", which it opens");
    mine.look = [&] { late.look_for_rank_0(who.job_id); };
    made.store = std::make_shared<TcpStore>(mine);
  }
  return made;
}

JobStore meet_at_agents(const LaunchEnvironment& who, Deadline deadline) {
  require(who.agent_fd.has_value(), "LOCKSTEP_STORE is set, but not LOCKSTEP_AGENT_FD");
  const auto [host, port] = address_of(who.store, "LOCKSTEP_STORE");
  JobStore made{.token = token_of(who, deadline), .host = host, .place = store_at(who.store)};
  made.store = std::make_shared<TcpStore>(options_for(who, host, port, made.token, deadline));
  return made;
}

}  // namespace

std::string member_id(const std::string& job_id) {
  if (job_id.size() <= max_job_id_bytes) return job_id;
  constexpr std::size_t begin = 100;
  return fmt::format("{:016x} {}", comm::hash_of(job_id.data(), job_id.size()),
                     job_id.substr(0, begin));
}

MpiWorld identify_by_mpi(const void* communicator) {
  MpiWorld world;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  lockstep_engine_error error{};
  const lockstep_engine& mpi = *open_engine("mpi").abi;
  if (mpi.identify(communicator, &world.handle, &rank, &size, &error) != 0)
    throw Error(static_cast<Fault>(error.fault), fmt::format("mpi: {}", error.text));
  world.rank = rank;
  world.size = size;
  return world;
}

JobStore open_job_store(LaunchEnvironment& who, const InitOptions& options,
                        const std::string& interface, Deadline deadline, comm::LateRanks& late) {
  if (options.store) return {.store = options.store, .token = token_of(who, deadline), .host = {}};
  if (options.mpi_communicator != nullptr)
    return meet_by_mpi(who, options.mpi_communicator, interface, deadline);
  if (!who.store.empty()) return meet_at_agents(who, deadline);
  if (who.master_is_taken)
    return {.store = connect_foreign_store(who.master, "lockstep/", deadline),
            .token = token_of(who, deadline),
            .host = address_of(who.master, "the job's master address").first,
            .place = store_at(who.master)};
  // MPI finds ranks on several hosts regardless of its variables.
  const bool by_mpi = is_mpi_launcher(who.launcher) && (who.master.empty() || who.master_is_local);
  if (!who.master.empty() && !by_mpi) return meet_at_master(who, interface, deadline, late);
  if (!by_mpi)
    throw Error(Fault::misuse,
                fmt::format("{} has no address at which ranks of several hosts connect: set "
                            "MASTER_ADDR and MASTER_PORT, or give InitOptions::store",
                            who.launcher));
  if (const std::string why = why_no_engine("mpi"); !why.empty())
    throw Error(
        Fault::unsupported,
        fmt::format("{} has no address at which ranks of several hosts connect, and MPI "
                    "cannot connect them ({}): set MASTER_ADDR and MASTER_PORT on all ranks",
                    who.launcher, why));
  return meet_by_mpi(who, nullptr, interface, deadline);
}

}  // namespace lockstep
