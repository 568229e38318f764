// Chooses the network interface through which ranks on other hosts reach this host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct NetworkInterface {
  std::string name;
  std::string address;  // Numeric; one entry per address.
  bool is_up = false;   // Enabled and with a link.
  bool is_loopback = false;
};

// This network namespace's interfaces, in the kernel's order, without link-local IPv6 addresses.
LOCKSTEP_API std::vector<NetworkInterface> network_interfaces();

// `choice` selects the interface: a name ("eth0"), an address, or a network
// ("10.0.0.0/8"). Several, separated by commas, are tried in order.
// An empty text selects the interface with the route to `master`, a host name or an address. If
// `master` is this host: the interface with that address.
// If `master` is empty, too: the interface with the default route, else the first non-loopback one
// that is up, else loopback. The same for a name other than localhost that resolves to loopback.
// Blocking: while the resolver looks up `master`.
// Errors: misuse if `master` cannot be resolved or, listing all interfaces, if none matches.
LOCKSTEP_API NetworkInterface choose_interface(std::string_view choice, const std::string& master);

}  // namespace lockstep
