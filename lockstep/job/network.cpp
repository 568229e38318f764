// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

// The discard port; no packet is sent.
constexpr int any_port = 9;

// Documentation networks (RFC 5737, RFC 3849): only the default route leads there.
constexpr const char* far_away[] = {"198.51.100.1", "2001:db8:ffff::1"};

std::string_view bytes_of(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    const auto& bytes = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    return {reinterpret_cast<const char*>(&bytes), sizeof bytes};
  }
  const auto& bytes = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  return {reinterpret_cast<const char*>(&bytes), sizeof bytes};
}

bool is_link_local(const SocketAddress& address) {
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

std::optional<SocketAddress> address_of(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return std::nullopt;
  SocketAddress address;
  const int family = entry.ifa_addr->sa_family;
  if (family == AF_INET)
    address.length = sizeof(sockaddr_in);
  else if (family == AF_INET6)
    address.length = sizeof(sockaddr_in6);
  else
    return std::nullopt;
  std::memcpy(&address.storage, entry.ifa_addr, address.length);
  return address;
}

std::string host_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.family(), bytes_of(address).data(), text.data(), text.size());
  return text.data();
}

bool share_bits(std::string_view left, std::string_view right, std::size_t bits) {
  if (left.size() != right.size()) return false;
  const std::size_t whole = bits / 8;
  if (left.substr(0, whole) != right.substr(0, whole)) return false;
  if (bits % 8 == 0) return true;
  const auto different = static_cast<std::uint8_t>(left[whole] ^ right[whole]);
  return (different >> (8 - bits % 8)) == 0;
}

// "10.0.0.0/8", or one host.
struct Network {
  SocketAddress address;
  std::size_t bits = 0;

  bool has(const NetworkInterface& interface) const {
    const SocketAddress its = numeric_address(interface.address, 0);
    return share_bits(bytes_of(its), bytes_of(address), bits);
  }
};

std::optional<SocketAddress> numeric(const std::string& text) {
  try {
    return numeric_address(text, 0);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Empty if `text` is an interface name.
std::optional<Network> network_of(std::string_view text) {
  const auto slash = text.find('/');
  const auto address = numeric(std::string(text.substr(0, slash)));
  if (slash == text.npos) {
    if (!address) return std::nullopt;
    return Network{*address, 8 * bytes_of(*address).size()};
  }
  const std::string_view digits = text.substr(slash + 1);
  Network network;
  const auto [end, problem] = std::from_chars(digits.begin(), digits.end(), network.bits);
  require(address && problem == std::errc() && end == digits.end() &&
              network.bits <= 8 * bytes_of(*address).size(),
          [&] { return fmt::format("'{}' is not a network: write ADDRESS/BITS", text); });
  network.address = *address;
  return network;
}

std::string list_of(const std::vector<NetworkInterface>& interfaces) {
  std::string text;
  for (const NetworkInterface& each : interfaces)
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", each.name, each.address,
                        each.is_up ? "" : " (down)");
  return text.empty() ? "none" : text;
}

template <class Condition>
const NetworkInterface* first(const std::vector<NetworkInterface>& interfaces,
                              Condition condition) {
  for (const NetworkInterface& each : interfaces)
    if (each.is_up && condition(each)) return &each;
  return nullptr;
}

const NetworkInterface* named(const std::vector<NetworkInterface>& interfaces,
                              std::string_view text) {
  if (const auto network = network_of(text))
    return first(interfaces, [&](const NetworkInterface& each) { return network->has(each); });
  return first(interfaces, [&](const NetworkInterface& each) { return each.name == text; });
}

// Also without a link: no other interface has this address.
const NetworkInterface* with_address(const std::vector<NetworkInterface>& interfaces,
                                     const SocketAddress& address) {
  const Network only{address, 8 * bytes_of(address).size()};
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const auto& each) { return only.has(each); });
  return found == interfaces.end() ? nullptr : &*found;
}

// The interface with the address `there`, else the one that routes to it. Connecting a datagram
// socket queries the kernel's route and sends nothing.
const NetworkInterface* with_route_to(const std::vector<NetworkInterface>& interfaces,
                                      const SocketAddress& there) {
  if (const NetworkInterface* ours = with_address(interfaces, there)) return ours;
  const FileDescriptor socket(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), there.generic(), there.length) != 0) return nullptr;
  return with_address(interfaces, local_address(socket.get()));
}

// Debian maps the host's name to 127.0.1.1.
bool says_nothing(const SocketAddress& address, const std::string& master) {
  return address.is_loopback() && master != "localhost" && !numeric(master);
}

const NetworkInterface* towards(const std::vector<NetworkInterface>& interfaces,
                                const std::string& master) {
  for (const SocketAddress& address : resolve(master, any_port)) {
    if (says_nothing(address, master)) continue;
    if (const NetworkInterface* found = with_route_to(interfaces, address)) return found;
  }
  return nullptr;
}

const NetworkInterface* usual(const std::vector<NetworkInterface>& interfaces) {
  for (const char* address : far_away)
    if (const auto* found = with_route_to(interfaces, numeric_address(address, any_port)))
      return found;
  if (const auto* found = first(interfaces, [](const auto& each) { return !each.is_loopback; }))
    return found;
  return first(interfaces, [](const NetworkInterface&) { return true; });
}

std::string state_of(const std::vector<NetworkInterface>& interfaces, std::string_view text) {
  if (network_of(text)) return {};
  const std::string name(text);
  if (::if_nametoindex(name.c_str()) == 0) return {};
  const bool has_address = std::any_of(interfaces.begin(), interfaces.end(),
                                       [&](const auto& each) { return each.name == name; });
  return fmt::format(" ({} is {})", name, has_address ? "down" : "there, but has no address");
}

const NetworkInterface& first_matching(const std::vector<NetworkInterface>& interfaces,
                                       std::string_view choice) {
  std::string states;
  for (std::size_t begin = 0; begin <= choice.size();) {
    const std::size_t end = std::min(choice.find(',', begin), choice.size());
    const std::string_view item = choice.substr(begin, end - begin);
    begin = end + 1;
    if (item.empty()) continue;
    if (const NetworkInterface* found = named(interfaces, item)) return *found;
    states += state_of(interfaces, item);
  }
  throw Error(Fault::misuse,
              fmt::format("no network interface of this host is '{}'{}; there are: {}", choice,
                          states, list_of(interfaces)));
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) throw_errno("listing the network interfaces: getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(entries, ::freeifaddrs);
  std::vector<NetworkInterface> found;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    const auto address = address_of(*entry);
    if (!address || is_link_local(*address)) continue;
    constexpr unsigned up = IFF_UP | IFF_RUNNING;
    found.push_back({.name = entry->ifa_name,
                     .address = host_text(*address),
                     .is_up = (entry->ifa_flags & up) == up,
                     .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

NetworkInterface choose_interface(std::string_view choice, const std::string& master) {
  const std::vector<NetworkInterface> interfaces = network_interfaces();
  if (!choice.empty()) return first_matching(interfaces, choice);
  const NetworkInterface* found = master.empty() ? nullptr : towards(interfaces, master);
  if (found == nullptr) found = usual(interfaces);
  require(found != nullptr, [&] {
    return fmt::format("no network interface of this host is up; there are: {}",
                       list_of(interfaces));
  });
  return *found;
}

}  // namespace lockstep
