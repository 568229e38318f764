// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/host/host_link.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds slice{20};

[[noreturn]] void throw_gone() {
  throw Error(Fault::peer_lost,
              "the process that connects the ranks of this host (the launcher, or rank 0) is gone");
}

}  // namespace

void HostLink::offer(std::string_view key, int readers, int fd) {
  Packet packet = make_packet(Packet::Kind::offer, key);
  packet.readers = readers;
  if (!send_packet(socket_.get(), packet, fd)) throw_gone();
}

void HostLink::refuse(std::string_view key, int readers, std::string_view reason) {
  Packet packet = make_packet(Packet::Kind::offer, key, reason);
  packet.readers = readers;
  if (!send_packet(socket_.get(), packet)) throw_gone();
}

FileDescriptor HostLink::obtain(std::string_view key, Deadline deadline,
                                const std::function<void()>& give_up) {
  if (!send_packet(socket_.get(), make_packet(Packet::Kind::want, key))) throw_gone();
  std::unique_lock lock(mutex_);
  while (true) {
    if (const auto found = replies_.find(key); found != replies_.end()) {
      Reply reply = std::move(found->second);
      replies_.erase(found);
      if (reply.fd) return std::move(reply.fd);
      if (reply.refusal.empty()) throw_errno(fmt::format("receiving {}", key), EMFILE);
      throw Error(Fault::system, fmt::format("a peer could not share {}: {}", key, reply.refusal));
    }
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
    // Who was to offer it may be gone already, after it did.
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
