// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/fd_broker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds while_deaf{20};

union Control {
  cmsghdr header;
  char space[CMSG_SPACE(sizeof(int))];
};

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
};

// A hash, because the identity, which clients send in full, may be long.
Address address_of(std::string_view identity) {
  const std::string name =
      fmt::format("lockstep/{}/{:016x}", ::geteuid(), std::hash<std::string_view>{}(identity));
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());  // A leading 0: abstract.
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor make_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno("making a Unix socket");
  return socket;
}

struct Connected {
  FileDescriptor socket = {};
  bool is_busy = false;
};

Connected connect_to_abstract_socket(std::string_view identity) {
  FileDescriptor socket = make_socket();
  const Address address = address_of(identity);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value);
  if (::connect(socket.get(), generic, address.length) == 0) return {std::move(socket)};
  if (errno == EAGAIN || errno == EINTR) return {.is_busy = true};
  if (errno == ECONNREFUSED) return {};
  throw_errno("connecting to an abstract Unix socket");
}

bool peer_is_this_user(int socket) {
  const auto peer = peer_of(socket);
  return peer && peer->user == ::geteuid();
}

bool begin_with(const Packet& packet, int socket) {
  return peer_is_this_user(socket) && send_packet(socket, packet) == Sent::whole;
}

Packet hello_of(std::string_view identity) {
  return make_packet(Packet::Kind::hello, "", identity);
}

// The kernel drops descriptors beyond the limit.
[[noreturn]] void throw_without_descriptor(std::string_view key) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  throw Error(Fault::system,
              fmt::format("receiving {}: this process has no free descriptor for it: "
                          "raise the limit of open files (ulimit -n), which is {}",
                          key, limit.rlim_cur));
}

// Empty when nobody listens.
FileDescriptor ask(std::string_view identity, std::string_view key) {
  FileDescriptor socket = connect_to_abstract_socket(identity).socket;
  const Packet want = make_packet(Packet::Kind::want, key, identity);
  return socket && begin_with(want, socket.get()) ? std::move(socket) : FileDescriptor();
}

}  // namespace

FileDescriptor descriptor_in(const Packet& packet, FileDescriptor fd) {
  if (fd) return fd;
  const std::string_view refusal = packet.text;
  if (refusal.empty()) throw_without_descriptor(packet.key);
  throw Error(Fault::system, fmt::format("a peer could not share {}: {}", packet.key, refusal));
}

Packet make_packet(Packet::Kind kind, std::string_view key, std::string_view text) {
  check(key.size() < sizeof Packet::key, "the name of shared memory is too long");
  Packet packet;
  packet.kind = kind;
  copy_text(packet.key, key);
  copy_text(packet.text, text);
  return packet;
}

Sent send_packet(int socket, const Packet& packet, int fd) {
  iovec data{const_cast<Packet*>(&packet), sizeof packet};
  Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.space;
    header.msg_controllen = sizeof control.space;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == sizeof packet) return Sent::whole;
  return sent < 0 && (errno == EAGAIN || errno == ENOBUFS) ? Sent::not_now : Sent::closed;
}

Received receive_packet(int socket, Packet& packet, FileDescriptor& fd) {
  iovec data{&packet, sizeof packet};
  Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.space;
  header.msg_controllen = sizeof control.space;
  const ssize_t received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing_yet;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); received > 0 && part != nullptr;
       part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
    fd = FileDescriptor(descriptor);
  }
  if (received != sizeof packet || packet.magic != Packet{}.magic) return Received::closed;
  packet.key[sizeof packet.key - 1] = '\0';
  packet.text[sizeof packet.text - 1] = '\0';
  return Received::packet;
}

FileDescriptor listen_on_abstract_socket(std::string_view identity) {
  FileDescriptor listener = make_socket();
  const Address address = address_of(identity);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value);
  const Deadline deadline = in(std::chrono::seconds(2));
  while (::bind(listener.get(), generic, address.length) != 0) {
    if (errno != EADDRINUSE) throw_errno("binding an abstract Unix socket");
    if (Clock::now() >= deadline)
      throw Error(Fault::misuse,
                  "another job of this user on this host has the same name and still runs: give "
                  "this one another MASTER_PORT or LOCKSTEP_JOB_ID");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) throw_errno("listening on a Unix socket");
  return listener;
}

FileDescriptor take_abstract_name(std::string_view identity) {
  FileDescriptor holder = make_socket();
  const Address address = address_of(identity);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value);
  if (::bind(holder.get(), generic, address.length) == 0) return holder;
  if (errno == EADDRINUSE) return FileDescriptor();
  throw_errno("binding an abstract Unix socket");
}

FileDescriptor connect_to_fd_broker(std::string_view identity) {
  FileDescriptor socket = connect_to_abstract_socket(identity).socket;
  const bool is_open = socket && begin_with(hello_of(identity), socket.get());
  return is_open ? std::move(socket) : FileDescriptor();
}

FileDescriptor fetch(const std::function<std::string()>& identity, std::string_view key,
                     Deadline deadline, const std::function<void()>& check) {
  constexpr std::chrono::milliseconds slice{20};
  constexpr std::chrono::microseconds longest_pause{5000};
  std::chrono::microseconds pause{100};
  FileDescriptor socket;
  while (true) {
    bool is_absent = false;  // identity() has already waited.
    if (!socket) {
      const std::string name = identity();
      is_absent = name.empty();
      if (!is_absent) socket = ask(name, key);
    }
    if (socket) {
      pollfd entry{socket.get(), POLLIN, 0};
      ::poll(&entry, 1, static_cast<int>(slice.count()));
      Packet packet;
      FileDescriptor fd;
      const Received received = receive_packet(socket.get(), packet, fd);
      if (received == Received::packet) return descriptor_in(packet, std::move(fd));
      if (received == Received::closed) socket = FileDescriptor();
    }
    check();
    if (Clock::now() >= deadline) return {};
    if (socket || is_absent) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
}

bool deliver(std::string_view identity, std::string_view key, int fd,
             const std::function<bool()>& is_there) {
  constexpr std::chrono::milliseconds pause{1};
  constexpr std::chrono::seconds longest{30};
  Packet offer = make_packet(Packet::Kind::offer, key);
  offer.readers = 1;
  // The kernel rejects a descriptor while too many of this user's are in flight.
  for (const Deadline deadline = in(longest);; std::this_thread::sleep_for(pause)) {
    const Connected connected = connect_to_abstract_socket(identity);
    const int socket = connected.socket.get();
    if (connected.socket && begin_with(hello_of(identity), socket) &&
        send_packet(socket, offer, fd) == Sent::whole)
      return true;
    if (!is_there() || (!connected.socket && !connected.is_busy)) return false;
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout, "passing the memory of " + std::string(key) +
                                      " to a rank of this host: it has not taken it within 30 s");
  }
}

FdBroker::FdBroker(int job_control_block) : job_control_block_(job_control_block) {}

void FdBroker::connect(FileDescriptor socket) {
  const std::lock_guard lock(mutex_);
  send_packet(socket.get(), make_packet(Packet::Kind::given, job_control_block_key),
              job_control_block_);
  clients_.push_back({.socket = std::move(socket), .trusted = true});
}

void FdBroker::listen(FileDescriptor listener, std::string identity) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  if (!spare_) reserve_spare();
  identity_ = std::move(identity);
}

void FdBroker::watch(std::vector<pollfd>& entries) const {
  const std::lock_guard lock(mutex_);
  if (listener_ && Clock::now() >= deaf_until_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) entries.push_back({client.socket.get(), POLLIN, 0});
}

void FdBroker::serve(const std::vector<pollfd>& entries) {
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_)
    if (events_of(entries, client.socket.get()) != 0) serve(client);
  for (Client& client : clients_)
    if (client.lost && listener_ && !spare_) keep_as_spare(std::move(client.socket));
  std::erase_if(clients_, [](const Client& client) { return client.lost; });
  if (listener_ && events_of(entries, listener_.get()) != 0) accept_all();
}

void FdBroker::accept_all() {
  while (FileDescriptor socket = accept_next())
    if (peer_is_this_user(socket.get())) clients_.push_back({.socket = std::move(socket)});
}

// Without free descriptors, accepts one connection at a time with the spare one, to keep serving
// published descriptors.
FileDescriptor FdBroker::accept_next() {
  const auto accept = [this] {
    return FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  const auto has_no_descriptor = [] { return errno == EMFILE || errno == ENFILE; };
  FileDescriptor socket = accept();
  if (!socket && has_no_descriptor() && spare_) {
    spare_ = FileDescriptor();
    socket = accept();
    if (!socket) reserve_spare();
  }
  if (!socket && has_no_descriptor()) deaf_until_ = in(while_deaf);
  return socket;
}

// Prevents other threads from taking the number.
void FdBroker::keep_as_spare(FileDescriptor socket) {
  if (::dup3(job_control_block_, socket.get(), O_CLOEXEC) < 0) return;
  spare_ = std::move(socket);
  deaf_until_ = {};
}

void FdBroker::reserve_spare() {
  const int reason = errno;
  spare_ = FileDescriptor(::fcntl(job_control_block_, F_DUPFD_CLOEXEC, 0));
  errno = reason;
}

void FdBroker::serve(Client& client) {
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
    const bool may_begin = packet.kind == Packet::Kind::hello || packet.kind == Packet::Kind::want;
    client.trusted = may_begin && packet.text == identity_;
    client.lost = !client.trusted;
    if (client.lost) return;
  }
  if (packet.kind == Packet::Kind::offer) {
    if (packet.readers > 0 && unwanted_.erase(packet.key) == 0)
      offer(packet.key, {std::move(fd), packet.text, packet.readers});
  } else if (packet.kind == Packet::Kind::want) {
    client.wanted.emplace_back(packet.key);
    give(client, packet.key);
  }
}

void FdBroker::publish(std::string_view key, FileDescriptor fd) {
  const std::lock_guard lock(mutex_);
  offer(std::string(key), {.fd = std::move(fd), .readers = everybody});
}

void FdBroker::publish_refusal(std::string_view key, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  offer(std::string(key), {.refusal = std::string(reason), .readers = everybody});
}

void FdBroker::close() {
  const std::lock_guard lock(mutex_);
  listener_ = FileDescriptor();
  clients_.clear();
  offers_.clear();
  unwanted_.clear();
  spare_ = FileDescriptor();
}

FileDescriptor FdBroker::take(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(key);
  if (found == offers_.end()) return {};
  FileDescriptor fd = std::move(found->second.fd);
  offers_.erase(found);
  if (!fd) throw_without_descriptor(key);
  return fd;
}

void FdBroker::withdraw(std::string_view key) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = offers_.find(key); found != offers_.end()) offers_.erase(found);
}

void FdBroker::drop(std::string_view key) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = offers_.find(key); found != offers_.end())
    offers_.erase(found);
  else
    unwanted_.emplace(key);
}

void FdBroker::offer(std::string key, Offer offer) {
  if (!offer.fd && offer.refusal.empty())
    offer.refusal =
        "the process that passes it on has no free descriptor: raise its limit of open files "
        "(ulimit -n)";
  offers_.insert_or_assign(key, std::move(offer));
  for (Client& client : clients_) give(client, key);
}

void FdBroker::give(Client& client, const std::string& key) {
  const auto wanted = std::find(client.wanted.begin(), client.wanted.end(), key);
  const auto found = offers_.find(key);
  if (client.lost || wanted == client.wanted.end()) return;
  if (key != job_control_block_key && found == offers_.end()) return;
  client.wanted.erase(wanted);
  if (key == job_control_block_key) {
    const Packet given = make_packet(Packet::Kind::given, key);
    client.lost = send_packet(client.socket.get(), given, job_control_block_) != Sent::whole;
    return;
  }
  Offer& offer = found->second;
  const auto kind = offer.fd ? Packet::Kind::given : Packet::Kind::refused;
  const Packet answer = make_packet(kind, key, offer.refusal);
  client.lost = send_packet(client.socket.get(), answer, offer.fd.get()) != Sent::whole;
  if (offer.readers != everybody && --offer.readers == 0) offers_.erase(found);
}

}  // namespace lockstep
