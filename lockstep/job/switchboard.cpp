// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/switchboard.h"

#include <sys/socket.h>

#include <algorithm>

#include "lockstep/base/poll_entries.h"
#include "lockstep/job/abstract_socket.h"
#include "lockstep/job/packet.h"

namespace lockstep {
Switchboard::Switchboard(int job_page) : job_page_(job_page) {}

void Switchboard::connect(FileDescriptor socket) {
  clients_.push_back({.socket = std::move(socket), .trusted = true});
}

void Switchboard::listen(FileDescriptor listener, std::string identity) {
  listener_ = std::move(listener);
  identity_ = std::move(identity);
}

void Switchboard::watch(std::vector<pollfd>& entries) const {
  if (listener_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) entries.push_back({client.socket.get(), POLLIN, 0});
}

void Switchboard::serve(const std::vector<pollfd>& entries) {
  for (Client& client : clients_)
    if (events_of(entries, client.socket.get()) != 0) serve(client);
  std::erase_if(clients_, [](const Client& client) { return client.lost; });
  if (listener_ && events_of(entries, listener_.get()) != 0) accept_all();
}

void Switchboard::accept_all() {
  while (true) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    if (peer_is_this_user(socket.get())) clients_.push_back({.socket = std::move(socket)});
  }
}

void Switchboard::serve(Client& client) {
  Packet packet;
  FileDescriptor fd;
  switch (receive_packet(client.socket.get(), packet, fd)) {
    case Received::nothing_yet:
      return;
    case Received::closed:
      client.lost = true;
      return;
    case Received::packet:
      break;
  }
  if (!client.trusted) {
    client.trusted = packet.kind == Packet::Kind::hello && packet.text == identity_;
    client.lost = !client.trusted;
  } else if (packet.kind == Packet::Kind::offer) {
    if (packet.readers > 0) offer(packet.key, {std::move(fd), packet.text, packet.readers});
  } else if (packet.kind == Packet::Kind::want) {
    client.wanted.emplace_back(packet.key);
    give(client, packet.key);
  }
}

void Switchboard::publish(std::string_view key, FileDescriptor fd) {
  offer(std::string(key), {.fd = std::move(fd), .readers = everybody});
}

void Switchboard::publish_refusal(std::string_view key, std::string_view reason) {
  offer(std::string(key), {.refusal = std::string(reason), .readers = everybody});
}

std::optional<FileDescriptor> Switchboard::take(std::string_view key) {
  const auto found = offers_.find(key);
  if (found == offers_.end()) return std::nullopt;
  FileDescriptor fd = std::move(found->second.fd);
  offers_.erase(found);
  return fd ? std::optional(std::move(fd)) : std::nullopt;
}

void Switchboard::offer(std::string key, Offer offer) {
  if (!offer.fd && offer.refusal.empty())
    offer.refusal = "the process that passes it on has too many open files";
  offers_.insert_or_assign(key, std::move(offer));
  for (Client& client : clients_) give(client, key);
}

// Answers `client` if it waits for `key` and the key is there.
void Switchboard::give(Client& client, const std::string& key) {
  const auto wanted = std::find(client.wanted.begin(), client.wanted.end(), key);
  const auto found = offers_.find(key);
  if (client.lost || wanted == client.wanted.end()) return;
  if (key != job_page_key && found == offers_.end()) return;
  client.wanted.erase(wanted);
  if (key == job_page_key) {
    const Packet given = make_packet(Packet::Kind::given, key);
    client.lost = send_packet(client.socket.get(), given, job_page_) != Sent::whole;
    return;
  }
  Offer& offer = found->second;
  const auto kind = offer.fd ? Packet::Kind::given : Packet::Kind::refused;
  const Packet answer = make_packet(kind, key, offer.refusal);
  client.lost = send_packet(client.socket.get(), answer, offer.fd.get()) != Sent::whole;
  if (offer.readers != everybody && --offer.readers == 0) offers_.erase(found);
}

}  // namespace lockstep
