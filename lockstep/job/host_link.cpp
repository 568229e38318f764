// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/job/fd_broker.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds slice{20};
constexpr std::chrono::seconds patience{30};  // For a broker without CPU time.

[[noreturn]] void throw_gone() {
  throw Error(Fault::peer_lost,
              "the process that connects the ranks of this host (the launcher, or rank 0) is gone");
}

}  // namespace

void HostLink::offer(std::string_view key, int fd) {
  Packet packet = make_packet(Packet::Kind::offer, key);
  packet.readers = 1;
  send(packet, fd);
}

void HostLink::send(const Packet& packet, int fd) {
  for (const Deadline deadline = in(patience);;) {
    switch (send_packet(socket_.get(), packet, fd)) {
      case Sent::whole:
        return;
      case Sent::closed:
        throw_gone();
      case Sent::not_now:
        break;
    }
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout, "the process that connects the ranks of this host does not run");
    pollfd entry{socket_.get(), POLLOUT, 0};
    ::poll(&entry, 1, static_cast<int>(slice.count()));
  }
}

FileDescriptor HostLink::take(std::string_view key) {
  const auto found = replies_.find(key);
  if (found == replies_.end()) return {};
  Reply reply = std::move(found->second);
  replies_.erase(found);
  return descriptor_in(reply.packet, std::move(reply.fd));
}

FileDescriptor HostLink::obtain(std::string_view key, Deadline deadline) {
  bool asked = false;  // The broker sends the job control block unasked.
  while (true) {
    const bool is_there = read_replies();
    if (FileDescriptor fd = take(key)) return fd;
    if (!is_there) throw_gone();
    if (!asked) send(make_packet(Packet::Kind::want, key));
    asked = true;
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout,
                  fmt::format("the process that connects the ranks of this host (the launcher, or "
                              "rank 0) has not sent {} in time",
                              key));
    pollfd entry{socket_.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(slice.count()));
  }
}

bool HostLink::read_replies() {
  while (true) {
    Packet packet;
    FileDescriptor fd;
    switch (receive_packet(socket_.get(), packet, fd)) {
      case Received::nothing_yet:
        return true;
      case Received::closed:
        return false;
      case Received::packet:
        replies_.insert_or_assign(packet.key, Reply{packet, std::move(fd)});
    }
  }
}

AgentConnection::AgentConnection(int agent_fd) : link_(duplicate_agent_fd(agent_fd)) {}

std::optional<JobToken> AgentConnection::job_token(Deadline deadline) {
  const auto memory = SharedMapping::attach(link_.obtain(job_token_key, deadline));
  const char* text = reinterpret_cast<const char*>(memory.data());
  const std::string_view token(text, ::strnlen(text, memory.bytes()));
  return token.empty() ? std::nullopt : std::optional<JobToken>(token);
}

JobControlBlock AgentConnection::own_page(Deadline deadline) {
  return JobControlBlock::attach(link_.obtain(job_control_block_key, deadline));
}

void AgentConnection::offer_session_page(const JobControlBlock& page) {
  link_.offer(session_page_key, page.descriptor());
}

FileDescriptor duplicate_agent_fd(int agent_fd) {
  if (::fcntl(agent_fd, F_SETFD, FD_CLOEXEC) != 0)
    throw Error(Fault::misuse, fmt::format("LOCKSTEP_AGENT_FD={} is not open: lockstep run must "
                                           "start this program itself, or a shell that execs it",
                                           agent_fd));
  return duplicate(agent_fd);
}

FileDescriptor share_job_token(const std::optional<JobToken>& token) {
  const std::string_view text = token ? token->text() : std::string_view();
  const auto memory = SharedMapping::create("job token", text.size() + 1);
  std::memcpy(memory.data(), text.data(), text.size());  // The mapping ends with a zero.
  return duplicate(memory.descriptor());
}

}  // namespace lockstep
