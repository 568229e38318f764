// Chooses the network interface through which ranks on other hosts reach this host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct NetworkInterface {
  std::string name;     // Such as "eth0".
  std::string address;  // Numeric IPv4 or IPv6. An interface with several addresses is listed once
                        // for each.
  bool is_up = false;   // Enabled and with a link.
  bool is_loopback = false;
};

// Returns the interfaces of this network namespace, in the kernel's order, without link-local IPv6
// addresses.
LOCKSTEP_API std::vector<NetworkInterface> network_interfaces();

// Returns the interface selected by `wanted`: an interface name ("eth0"), an address, or a network
// ("10.0.0.0/8", "fd00::/8"). Several, separated by commas, are tried in order.
// If `wanted` is empty: the interface with the route to `master`, a host name or an address. If
// `master` is this host, the interface with that address.
// If `master` is empty too: the interface with the default route, else the first non-loopback
// interface that is up, else loopback. The same if `master` is a name that resolves to loopback
// here, except for localhost. Debian maps a host's own name to 127.0.1.1.
// Blocking: while the resolver looks up `master`.
// Errors: misuse when no interface matches, with a list of all, or `master` cannot be resolved.
LOCKSTEP_API NetworkInterface choose_interface(std::string_view wanted, const std::string& master);

}  // namespace lockstep
