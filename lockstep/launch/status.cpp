// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/status_address.h"
#include "lockstep/launch/status_json.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds pause_without_descriptors{100};

using namespace std::chrono_literals;

constexpr std::size_t most_clients = 16;
constexpr std::chrono::milliseconds time_to_read = 2s;
constexpr int backlog = 16;

FileDescriptor listen_as(const std::string& job_id) {
  FileDescriptor listener(::socket(AF_UNIX, status_socket, 0));
  if (!listener) throw_errno("making a Unix socket");
  for (int n = 0;; ++n) {
    const StatusAddress address(fmt::format("{}{}{}{}.{}/{}", status_root, ::geteuid(),
                                            status_service, ::getpid(), n,
                                            status_name_of_job(job_id)));
    if (::bind(listener.get(), address.get(), address.length) == 0) break;
    if (errno != EADDRINUSE) throw_errno("binding an abstract Unix socket");
  }
  if (::listen(listener.get(), backlog) != 0) throw_errno("listening on a Unix socket");
  return listener;
}

bool may_ask(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

StatusService::StatusService(const std::string& job_id, std::function<JobStatus()> status)
    : listener_(listen_as(job_id)), status_(std::move(status)) {}

void StatusService::watch(std::vector<pollfd>& entries) const {
  // Without a free descriptor for a client, the listener would stay ready and the loop would spin.
  if (Clock::now() >= accept_again_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) entries.push_back({client.socket.get(), POLLOUT, 0});
}

void StatusService::serve(const std::vector<pollfd>& entries) {
  std::erase_if(clients_, [&](Client& client) {
    if (events_of(entries, client.socket.get()) != 0) return !send(client);
    return Clock::now() >= client.deadline;
  });
  if (events_of(entries, listener_.get()) != 0) accept_client();
}

// Accepts one client per turn, so that endless requests take at most every other turn of the loop.
void StatusService::accept_client() {
  FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) accept_again_ = in(pause_without_descriptors);
  if (!socket || !may_ask(socket.get())) return;
  Client client{std::move(socket), to_json(status_()), in(time_to_read)};
  if (!send(client)) return;  // The kernel keeps sent data until it is read.
  if (clients_.size() == most_clients) clients_.erase(clients_.begin());
  clients_.push_back(std::move(client));
}

bool StatusService::send(Client& client) {
  const ssize_t sent = ::send(client.socket.get(), client.rest.data(), client.rest.size(),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  client.rest.erase(0, static_cast<std::size_t>(sent));
  return !client.rest.empty();
}

}  // namespace lockstep
