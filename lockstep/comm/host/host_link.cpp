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
  Message message = make_message(Message::Kind::offer, key);
  message.readers = readers;
  if (!send_message(socket_.get(), message, fd)) throw_gone();
}

void HostLink::refuse(std::string_view key, int readers, std::string_view reason) {
  Message message = make_message(Message::Kind::offer, key, reason);
  message.readers = readers;
  if (!send_message(socket_.get(), message)) throw_gone();
}

FileDescriptor HostLink::obtain(std::string_view key, Deadline deadline,
                                const std::function<void()>& give_up) {
  if (!send_message(socket_.get(), make_message(Message::Kind::want, key))) throw_gone();
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
    give_up();
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
    read_replies();
    arrived_.notify_all();
  }
}

void HostLink::read_replies() {
  while (true) {
    Message message;
    FileDescriptor fd;
    switch (receive_message(socket_.get(), message, fd)) {
      case Received::nothing_yet:
        return;
      case Received::closed:
        throw_gone();
      case Received::message:
        replies_.insert_or_assign(message.key, Reply{std::move(fd), message.text});
    }
  }
}

}  // namespace lockstep
