// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rendezvous.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/random_number.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/launch/rendezvous_end.h"

namespace lockstep {
namespace {

constexpr std::size_t longest_id = 80;  // Space for the suffix that makes it unique.

// Debian's /etc/hosts maps a host's own name to 127.0.1.1, unreachable for others.
void require_reachable(const launch::Endpoint& endpoint, const SocketAddress& address) {
  const bool is_name = endpoint.host.find_first_not_of("0123456789.:") != endpoint.host.npos &&
                       endpoint.host.find(':') == endpoint.host.npos;
  require(!is_name || endpoint.host == "localhost" || !address.is_loopback(), [&] {
    return fmt::format(
        "on this host '{}' means {}, which no other host reaches: give an address "
        "as the endpoint, or change /etc/hosts",
        endpoint.host, to_text(address));
  });
}

}  // namespace

void require_hosts(const RunOptions& options) {
  const Hosts& hosts = options.hosts;
  require(options.nproc_per_node >= 1, "a host has at least one rank");
  require(hosts.least >= 1 && hosts.least <= hosts.most, "a job has 1 <= least <= most hosts");
  if (hosts.most == 1) return;
  require(!hosts.id.empty() && hosts.id.size() <= longest_id,
          "the id of a job of several hosts has 1 to 80 bytes");
  require(clean_text(hosts.id) == hosts.id, "the id of a job is UTF-8 without control characters");
  if (!hosts.node_rank) return;
  require(hosts.least == hosts.most, "node ranks are for a fixed number of hosts");
  require(*hosts.node_rank >= 0 && *hosts.node_rank < hosts.most,
          "a node rank is at least 0 and less than the number of hosts");
}

namespace launch {

std::string random_job_id() {
  return fmt::format("{:016x}{:016x}", random_number(), random_number());
}

Endpoint parse_endpoint(const std::string& text) {
  const auto parts = host_and_port(text);
  require(parts.has_value(), [&] {
    return fmt::format("'{}' is not an endpoint: write HOST:PORT or [IPV6]:PORT, port 1 to 65535",
                       text);
  });
  return {parts->first, parts->second, resolve(parts->first, parts->second)};
}

}  // namespace launch

// The launcher that listens at the endpoint coordinates: node 0's or, without node ranks, the first
// one on its host.
std::unique_ptr<Rendezvous> make_rendezvous(const RunOptions& options) {
  const auto token = read_job_token();
  require_hosts(options);
  const Hosts& hosts = options.hosts;
  if (hosts.most == 1) return launch::make_single_end(options, token);
  const launch::Endpoint endpoint = launch::parse_endpoint(hosts.endpoint);
  if (hosts.node_rank && *hosts.node_rank != 0)
    return launch::make_joining_end(options, token, endpoint, /*taken_here=*/false);
  for (const SocketAddress& address : endpoint.addresses) {
    FileDescriptor listener = try_to_listen(address);
    const int error = errno;
    if (listener) {
      require_reachable(endpoint, address);
      require_protection(address, endpoint.host, token.has_value(), "the launcher");
      return launch::make_coordinating_end(options, token, endpoint, address, std::move(listener));
    }
    if (error == EADDRINUSE && !hosts.node_rank)
      return launch::make_joining_end(options, token, endpoint, /*taken_here=*/true);
    const bool elsewhere = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    if (!elsewhere || (hosts.node_rank && &address == &endpoint.addresses.back()))
      throw_not_listening(address, error);
  }
  return launch::make_joining_end(options, token, endpoint, /*taken_here=*/false);
}

void Rendezvous::flush(std::chrono::milliseconds limit) {
  const Deadline abandon = in(limit);
  while (!flushed() && Clock::now() < abandon) {
    serve(launch::next_events({this}, abandon));
    take_orders();
  }
}

ReservedPort::ReservedPort(const std::string& address, int port) {
  const SocketAddress wanted = numeric_address(address, port);
  socket_ = FileDescriptor(::socket(wanted.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_) throw_errno("reserving a port for rank 0: socket");
  const int yes = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket_.get(), wanted.generic(), wanted.length) != 0)
    throw_not_listening(wanted, errno);
  number_ = local_address(socket_.get()).port();
}

}  // namespace lockstep
