// Through which of this host's network interfaces ranks of other hosts reach it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct NetworkInterface {
  std::string name;     // Such as "eth0".
  std::string address;  // Numeric IPv4 or IPv6; an interface with several is listed for each.
  bool is_up = false;   // Switched on, and with a link.
  bool is_loopback = false;
};

// Of this network namespace, in the kernel's order; link-local IPv6 addresses are left out.
LOCKSTEP_API std::vector<NetworkInterface> network_interfaces();

// The one that `wanted` names: an interface ("eth0"), an address, or a network ("10.0.0.0/8",
// "fd00::/8"); several, separated by commas, are tried in order. When `wanted` is empty: the one
// with the route to `master`, a host's name or address; of this host itself, the one that has that
// address. When `master` is empty too, or a name that is loopback here (a Debian host's own, often
// 127.0.1.1) but for localhost: the one with the default route, else the first that is up and not
// loopback, else loopback.
// Blocking: as long as the resolver needs for the name.
// Errors: misuse when there is none, with all that there are, and when nobody knows `master`.
LOCKSTEP_API NetworkInterface choose_interface(std::string_view wanted, const std::string& master);

}  // namespace lockstep
