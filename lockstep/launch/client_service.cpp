// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/client_service.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t most_clients = 16;
constexpr std::chrono::milliseconds pause_without_descriptors = 100ms;

}  // namespace

void ClientService::watch(std::vector<pollfd>& entries) const {
  // Without a free descriptor, a ready listener would make the loop spin.
  if (Clock::now() >= accept_again_) entries.push_back({listener(), POLLIN, 0});
  for (const Client& client : clients_) {
    const short events = client.rest.empty() ? POLLIN : POLLOUT;
    entries.push_back({client.socket.get(), events, 0});
  }
}

Deadline ClientService::deadline() const {
  Deadline first = accept_again_ > Clock::now() ? accept_again_ : no_deadline;
  for (const Client& client : clients_) first = std::min(first, client.deadline);
  return first;
}

void ClientService::serve(const std::vector<pollfd>& entries) {
  std::erase_if(clients_, [&](Client& client) {
    if (events_of(entries, client.socket.get()) != 0) return !go_on(client);
    return Clock::now() >= client.deadline;
  });
  if (events_of(entries, listener()) != 0) accept_client();
}

// One client per iteration: endless requests take at most every second iteration.
void ClientService::accept_client() {
  FileDescriptor socket(::accept4(listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    accept_again_ = in(pause_without_descriptors);
    return;
  }
  Client client{.socket = std::move(socket), .deadline = in(client_timeout_)};
  if (!welcome(client)) return;
  if (clients_.size() == most_clients) clients_.erase(clients_.begin());
  clients_.push_back(std::move(client));
}

bool ClientService::send_rest(Client& client) {
  const ssize_t sent = ::send(client.socket.get(), client.rest.data(), client.rest.size(),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  client.rest.erase(0, static_cast<std::size_t>(sent));
  return true;
}

}  // namespace lockstep::launch
