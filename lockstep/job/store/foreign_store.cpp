// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/foreign_store.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

// Never destroyed: libraries register while loaded, and may use it until exit.
struct Registered {
  std::mutex mutex;
  ForeignStoreConnector connector;
};

Registered& registered() {
  static auto* const one = new Registered;
  return *one;
}

}  // namespace

void register_foreign_store(ForeignStoreConnector connector) {
  const std::lock_guard lock(registered().mutex);
  registered().connector = std::move(connector);
}

std::shared_ptr<Store> connect_foreign_store(const std::string& address, std::string prefix,
                                             Deadline deadline) {
  auto place = host_and_port(address);
  require(place.has_value(),
          [&] { return fmt::format("'{}' is not a store's address: write HOST:PORT", address); });
  ForeignStoreConnector connector;
  {
    const std::lock_guard lock(registered().mutex);
    connector = registered().connector;
  }
  if (!connector)
    throw Error(Fault::unsupported,
                fmt::format("the launcher keeps a store of its own at {}, which only programs that "
                            "are linked with Lockstep::lockstep can use; link with it, or start "
                            "the program with lockstep run",
                            address));
  return connector({std::move(place->first), place->second, std::move(prefix)}, deadline);
}

}  // namespace lockstep
