// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/variables.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

bool is_first(const char* name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;  // Never destroyed: used until exit.
  const std::lock_guard lock(mutex);
  return names.emplace(name).second;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

bool is_service_link(std::string_view value) {
  for (const std::string_view scheme : {"tcp://", "udp://", "sctp://"}) {
    if (!value.starts_with(scheme)) continue;
    const std::string_view address = value.substr(scheme.size());
    const auto colon = address.rfind(':');
    return colon != address.npos && colon > 0 && is_port(address.substr(colon + 1));
  }
  return false;
}

const char* accept_variable(const char* name, const char* value) {
  if (value == nullptr || *value == '\0') return nullptr;
  if (!is_service_link(value)) return value;
  if (is_first(name))
    log(LogLevel::warning,
        fmt::format("ignoring {}={}: Kubernetes has set it for a service of that name. Give the "
                    "service another name, or set enableServiceLinks: false in the pod",
                    name, clean_text(value, 100)));
  return nullptr;
}

const char* read_variable(const char* name) { return accept_variable(name, std::getenv(name)); }

}  // namespace lockstep
