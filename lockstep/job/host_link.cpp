// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_link.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds slice{20};
constexpr std::chrono::seconds patience{30};  // Limit for a switchboard that gets no CPU time.

[[noreturn]] void throw_gone() {
  throw Error(Fault::peer_lost,
              "the process that connects the ranks of this host (the launcher, or rank 0) is gone");
}

}  // namespace

void HostLink::offer(std::string_view key, int readers, int fd) {
  Packet packet = make_packet(Packet::Kind::offer, key);
  packet.readers = readers;
  send(packet, fd);
}

void HostLink::refuse(std::string_view key, int readers, std::string_view reason) {
  Packet packet = make_packet(Packet::Kind::offer, key, reason);
  packet.readers = readers;
  send(packet);
}

void HostLink::request(std::string_view key) { send(make_packet(Packet::Kind::want, key)); }

void HostLink::send(const Packet& packet, int fd) const {
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

FileDescriptor HostLink::poll(std::string_view key) {
  const std::lock_guard lock(mutex_);
  if (!reading_ && read_replies()) arrived_.notify_all();
  return take(key);
}

// Returns nothing if the reply has not come.
FileDescriptor HostLink::take(std::string_view key) {
  const auto found = replies_.find(key);
  if (found == replies_.end()) return {};
  Reply reply = std::move(found->second);
  replies_.erase(found);
  if (reply.fd) return std::move(reply.fd);
  if (reply.refusal.empty()) throw_errno(fmt::format("receiving {}", key), EMFILE);
  throw Error(Fault::system, fmt::format("a peer could not share {}: {}", key, reply.refusal));
}

FileDescriptor HostLink::obtain(std::string_view key, Deadline deadline,
                                const std::function<void()>& give_up) {
  request(key);
  std::unique_lock lock(mutex_);
  while (true) {
    if (FileDescriptor fd = take(key)) return fd;
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout, fmt::format("no rank of this host offered {}", key));
    if (reading_) {
      arrived_.wait_for(lock, slice);
      continue;
    }
    reading_ = true;
    lock.unlock();
    pollfd entry{socket_.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(slice.count()));
    lock.lock();
    reading_ = false;
    // Check after the replies: a rank may offer the descriptor and then leave.
    if (!read_replies()) give_up();
    arrived_.notify_all();
  }
}

bool HostLink::read_replies() {
  for (bool any = false;; any = true) {
    Packet packet;
    FileDescriptor fd;
    switch (receive_packet(socket_.get(), packet, fd)) {
      case Received::nothing_yet:
        return any;
      case Received::closed:
        if (any) return true;
        throw_gone();
      case Received::packet:
        replies_.insert_or_assign(packet.key, Reply{std::move(fd), packet.text});
    }
  }
}

}  // namespace lockstep
