// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"

namespace lockstep {
namespace {

constexpr int user_timeout_ms = 10'000;

const sockaddr_in& v4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}

const sockaddr_in6& v6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

std::vector<SocketAddress> look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, ::freeaddrinfo);
  if (error != 0)
    throw Error(Fault::misuse,
                fmt::format("'{}' is not a host's address: {}", host, ::gai_strerror(error)));
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress& address = found.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  return found;
}

void require_port(int port) { require(port >= 0 && port <= 65535, "a TCP port is 0 to 65535"); }

FileDescriptor make_socket(const SocketAddress& address) {
  return FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

namespace fs = std::filesystem;

struct Listener {
  std::string inode;
  std::string uid;
};

// A line: number, local address:port in hex, remote, state, queues, timer, retransmits, uid,
// timeout, inode.
std::optional<Listener> find_listener(const char* table, int port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  const std::string wanted = fmt::format(":{:04X}", port);
  while (std::getline(file, line)) {
    std::istringstream stream(line);
    std::string number, local, remote, state, queues, timer, retransmits, timeout;
    Listener listener;
    stream >> number >> local >> remote >> state >> queues >> timer >> retransmits >>
        listener.uid >> timeout >> listener.inode;
    if (stream && state == "0A" && local.ends_with(wanted)) return listener;
  }
  return std::nullopt;
}

bool holds(pid_t process, const std::string& socket) {
  const fs::path folder = fmt::format("/proc/{}/fd", process);
  const std::vector<std::string> descriptors = names_in(folder);
  return std::any_of(descriptors.begin(), descriptors.end(), [&](const std::string& descriptor) {
    std::error_code closed;
    return fs::read_symlink(folder / descriptor, closed) == socket;
  });
}

std::string shown_command(pid_t process) {
  constexpr std::size_t most = 120;
  const std::string command = command_of(process);
  return clean_text(command, most) + (command.size() > most ? "..." : "");
}

}  // namespace

int SocketAddress::port() const {
  return ::ntohs(family() == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return (::ntohl(v4(*this).sin_addr.s_addr) >> 24) == 127;
  const in6_addr& address = v6(*this).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

std::string to_text(const std::string& host, int port) {
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, port)
                                     : fmt::format("[{}]:{}", host, port);
}

std::string to_text(const SocketAddress& address) {
  if (address.length == 0) return "nowhere";
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address.family() == AF_INET6
                          ? static_cast<const void*>(&v6(address).sin6_addr)
                          : static_cast<const void*>(&v4(address).sin_addr);
  ::inet_ntop(address.family(), bytes, text.data(), text.size());
  return to_text(std::string(text.data()), address.port());
}

std::optional<std::pair<std::string, int>> host_and_port(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != host.npos)
    return std::nullopt;  // Without brackets, the last colon is ambiguous.
  const std::string_view digits = text.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), port);
  if (host.empty() || error != std::errc() || end != digits.end() || port < 1 || port > 65535)
    return std::nullopt;
  return std::pair(std::string(host), port);
}

SocketAddress numeric_address(const std::string& host, int port) {
  require_port(port);
  return look_up(host, port, AI_NUMERICHOST | AI_PASSIVE).at(0);
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  require_port(port);
  if (host == "localhost")
    return {numeric_address("127.0.0.1", port), numeric_address("::1", port)};
  try {
    return {numeric_address(host, port)};
  } catch (const Error&) {
    return look_up(host, port, AI_ADDRCONFIG);
  }
}

SocketAddress local_address(int socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    throw_errno("reading the address of a TCP socket: getsockname");
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    address.length = 0;
  return address;
}

void tune_stream(int socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
}

void require_protection(const SocketAddress& address, const std::string& host, bool has_token,
                        std::string_view what) {
  const char* trust = read_variable("LOCKSTEP_TRUST_NETWORK");
  if (address.is_loopback() || has_token || (trust != nullptr && trust == std::string_view("1")))
    return;
  throw Error(Fault::misuse,
              fmt::format("{} will not listen on {} without a job token: anybody on the "
                          "network could read and change it; caused by LOCKSTEP_JOB_TOKEN_FILE, "
                          "which is not set; to do: set it on every host to a file with the same "
                          "secret (openssl rand -base64 32), or LOCKSTEP_TRUST_NETWORK=1 if nobody "
                          "on this network is hostile",
                          what, host));
}

FileDescriptor try_to_listen(const SocketAddress& address) {
  std::minstd_rand random(std::random_device{}());
  for (int tries_left = 20;; --tries_left) {
    FileDescriptor listener = make_socket(address);
    if (!listener) throw_errno("making a TCP socket");
    const int yes = 1;  // For lingering connections of an earlier job.
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address.family() == AF_INET6)
      ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    const bool bound = ::bind(listener.get(), address.generic(), address.length) == 0;
    if (bound && ::listen(listener.get(), SOMAXCONN) == 0) return listener;
    const int error = errno;
    // If two sockets listen() on one port at once, Linux fails both. bind() fails if another
    // already listens.
    if (bound && error == EADDRINUSE && tries_left > 0) {
      listener = FileDescriptor();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      continue;
    }
    listener = FileDescriptor();
    errno = error;
    return FileDescriptor();
  }
}

void throw_not_listening(const SocketAddress& address, int error) {
  if (error == EADDRINUSE)
    throw Error(Fault::misuse, fmt::format("port {} is in use; caused by {}, which listens on it; "
                                           "to do: choose another port, or 0 for any",
                                           address.port(), describe_port_holder(address.port())));
  throw_errno(fmt::format("listening on {}", to_text(address)), error);
}

FileDescriptor begin_connecting(const SocketAddress& address) {
  FileDescriptor socket = make_socket(address);
  if (!socket) throw_errno("making a TCP socket");
  if (::connect(socket.get(), address.generic(), address.length) == 0 || errno == EINPROGRESS)
    return socket;
  const int error = errno;
  socket = FileDescriptor();
  errno = error;
  return FileDescriptor();
}

std::string finish_connecting(int socket, const SocketAddress& address) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return std::generic_category().message(error);
  // TCP connects a socket to itself if the kernel assigns it that port.
  if (to_text(local_address(socket)) == to_text(address)) return "nobody listens";
  tune_stream(socket);
  return "";
}

std::string describe_port_holder(int port) {
  std::optional<Listener> listener = find_listener("/proc/net/tcp", port);
  if (!listener) listener = find_listener("/proc/net/tcp6", port);
  if (!listener) return "an unknown process";
  const std::string socket = fmt::format("socket:[{}]", listener->inode);
  for (const pid_t process : process_ids())
    if (holds(process, socket))
      return fmt::format("process {} ({})", process, shown_command(process));
  return fmt::format("a process of user {}", listener->uid);
}

}  // namespace lockstep
