// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/socket_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>

#include "lockstep/base/error.h"

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
                fmt::format("'{}' is no address of a host: {}", host, ::gai_strerror(error)));
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
    return std::nullopt;  // The last colon is ambiguous without brackets.
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
    throw_errno("getsockname");
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

}  // namespace lockstep
