// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/costs.h"

#include <array>
#include <cstdlib>
#include <utility>

namespace lockstep::simulation {
namespace {

constexpr std::array fields{
    std::pair{"server_connect", &Costs::server_connect},
    std::pair{"client_connect", &Costs::client_connect},
    std::pair{"server_request", &Costs::server_request},
    std::pair{"client_request", &Costs::client_request},
    std::pair{"server_wait", &Costs::server_wait},
    std::pair{"server_byte", &Costs::server_byte},
    std::pair{"link_send", &Costs::link_send},
    std::pair{"link_receive", &Costs::link_receive},
    std::pair{"turn_entry", &Costs::turn_entry},
    std::pair{"state", &Costs::state},
    std::pair{"count_host", &Costs::count_host},
    std::pair{"make_end", &Costs::make_end},
    std::pair{"start_thread", &Costs::start_thread},
    std::pair{"latency_ns", &Costs::latency_ns},
    std::pair{"gigabits", &Costs::gigabits},
};

}  // namespace

bool Costs::set(std::string_view text) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = text.substr(0, equals);
  const std::string value(text.substr(equals + 1));
  for (const auto& [known, field] : fields) {
    if (name != known) continue;
    char* end = nullptr;
    this->*field = std::strtod(value.c_str(), &end);
    return !value.empty() && *end == '\0' && this->*field >= 0;
  }
  return false;
}

}  // namespace lockstep::simulation
