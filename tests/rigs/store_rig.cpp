// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/store_rig.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"

namespace {

std::atomic<std::size_t> largest{0};

void* allocate(std::size_t size) {
  for (std::size_t seen = largest; size > seen && !largest.compare_exchange_weak(seen, size);) {
  }
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep::test {

FileDescriptor make_peer_socket() {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno("socket");
  return socket;
}

bool connect_peer(int socket, int port) {
  const SocketAddress address = numeric_address("127.0.0.1", port);
  return ::connect(socket, address.generic(), address.length) == 0;
}

FileDescriptor unauthenticated_peer_on(int port) {
  FileDescriptor socket = make_peer_socket();
  if (!connect_peer(socket.get(), port)) throw_errno("connect");
  return socket;
}

FileDescriptor authenticated_on(int port, const JobMember& member, Channel channel) {
  FileDescriptor socket = unauthenticated_peer_on(port);
  ClientHandshake handshake(member, std::nullopt, make_nonce(), channel);
  std::array<char, verdict_bytes> bytes{};
  const auto receive = [&](std::size_t count) {
    check(::recv(socket.get(), bytes.data(), count, MSG_WAITALL) == static_cast<ssize_t>(count),
          "the handshake broke off");
    return std::string_view(bytes.data(), count);
  };
  send_all(socket.get(), handshake.hello(receive(challenge_bytes)));
  handshake.confirm(receive(verdict_bytes));
  return socket;
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

bool is_closed_by(int socket, Deadline deadline) {
  std::array<char, 65536> bytes;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd watched{socket, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&watched, 1, static_cast<int>(left.count())) <= 0) return false;
    if (::recv(socket, bytes.data(), bytes.size(), 0) <= 0) return true;
  }
}

std::size_t largest_allocation() { return largest.exchange(0); }

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

}  // namespace lockstep::test
