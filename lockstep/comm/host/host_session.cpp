// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/host/host_session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cstdlib>
#include <thread>

#include "lockstep/comm/error.h"
#include "lockstep/comm/failure_record.h"
#include "lockstep/comm/host/abstract_socket.h"
#include "lockstep/comm/log.h"

namespace lockstep {
namespace {

// Half of the time within which a failure is to be known.
constexpr std::chrono::milliseconds time_for_last_words{50};

// What ranks of one job agree on, and ranks of any other cannot say. Never shown: it may hold a
// secret.
std::string identity_of(const LaunchEnvironment& environment, std::string_view name) {
  const char* token = ::getenv("LOCKSTEP_JOB_TOKEN");
  std::string identity =
      fmt::format("{} {} ranks={}{}{}", environment.job_id, name, environment.world_size,
                  token ? " token=" : "", token ? token : "");
  require(
      identity.size() < sizeof Packet::text,
      fmt::format("the job's name and LOCKSTEP_JOB_TOKEN together are {} bytes long; {} is most",
                  identity.size(), sizeof Packet::text - 1));
  return identity;
}

// The inherited descriptor stays open for a later group; children of ours must not have it.
FileDescriptor duplicate(int agent_fd) {
  ::fcntl(agent_fd, F_SETFD, FD_CLOEXEC);
  FileDescriptor copy(::fcntl(agent_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy)
    throw Error(Fault::misuse, fmt::format("LOCKSTEP_AGENT_FD={} is not open: lockstep run must "
                                           "start this program itself, or a shell that execs it",
                                           agent_fd));
  return copy;
}

FileDescriptor call_rank_zero(const std::string& identity, const std::string& job_id,
                              Deadline deadline) {
  while (true) {
    FileDescriptor socket = connect_to_abstract_socket(identity);
    if (socket && peer_is_this_user(socket.get()) &&
        send_packet(socket.get(), make_packet(Packet::Kind::hello, "", identity)) == Sent::whole)
      return socket;
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout,
                  fmt::format("rank 0 of job '{}' did not appear on this host", job_id));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

HostSession::HostSession(const LaunchEnvironment& environment, std::string_view name,
                         Deadline deadline)
    : rank_(environment.rank) {
  if (environment.agent_fd) {
    link_ = std::make_unique<HostLink>(duplicate(*environment.agent_fd));
  } else if (rank_ == 0) {
    open_switchboard(environment, identity_of(environment, name));
  } else {
    link_ = std::make_unique<HostLink>(
        call_rank_zero(identity_of(environment, name), environment.job_id, deadline));
  }
  if (!page_)
    page_ = std::make_shared<JobPage>(JobPage::attach(link_->obtain(job_page_key, deadline)));
  if (size() != environment.world_size)
    throw Error(Fault::mismatch, fmt::format("this rank was told of {} ranks, the launcher of {}",
                                             environment.world_size, size()));
  sentinel_ = std::make_unique<Sentinel>(*page_, rank_, switchboard_.get());
}

void HostSession::open_switchboard(const LaunchEnvironment& environment, std::string identity) {
  page_ = std::make_shared<JobPage>(JobPage::create(environment.world_size, environment.job_id));
  switchboard_ = std::make_unique<Switchboard>(page_->descriptor());
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw_errno("making a socket pair");
  switchboard_->connect(FileDescriptor(ends[0]));
  link_ = std::make_unique<HostLink>(FileDescriptor(ends[1]));
  if (environment.world_size == 1) return;  // Nobody else will come.
  FileDescriptor listener = listen_on_abstract_socket(identity);
  switchboard_->listen(std::move(listener), std::move(identity));
}

void HostSession::throw_if_peer_lost(std::string_view context) const {
  if (const auto failure = page_->failure()) throw_lost(context, *failure);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || !page_->lost(peer)) continue;
    const Failure seen = examine(peer);
    page_->report(seen);
    throw_lost(context, recorded_failure().value_or(seen));
  }
}

void HostSession::throw_lost(std::string_view context, const Failure& failure) const {
  if (!logged_.exchange(true))
    log(LogLevel::error, failure_record(page_->job_id(), failure, page_->since_failure()));
  throw Error(context, failure);
}

// A rank that loses its group to an exception which it catches says which one only when the stack is
// unwound, a moment later.
Failure HostSession::examine(int peer) const {
  const Deadline patience = in(time_for_last_words);
  Failure seen = page_->examine(peer);
  while (seen.left && seen.what.empty() && !page_->failure() && Clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = page_->examine(peer);
  }
  seen.detected_by = rank_;
  return seen;
}

// Another rank's record of the same failure may have come first, and be half written; that rank
// may even have been killed in the middle of it.
std::optional<Failure> HostSession::recorded_failure() const {
  const Deadline patience = in(std::chrono::milliseconds(100));
  while (!page_->failure() && Clock::now() < patience) std::this_thread::yield();
  return page_->failure();
}

}  // namespace lockstep
