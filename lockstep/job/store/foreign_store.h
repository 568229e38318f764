// Connects to stores of other launchers, such as torchrun's at MASTER_ADDR and MASTER_PORT. A
// library that implements their protocol registers a connector here.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct ForeignStoreAddress {
  std::string host;
  int port = 0;
  std::string prefix;  // Prefix of all keys: the launcher and other jobs share the store.
};

using ForeignStoreConnector =
    std::function<std::shared_ptr<Store>(const ForeignStoreAddress&, Deadline)>;

// Sets the connector for later connections. It must not block beyond its deadline, and throws as
// connect_foreign_store(). Replaces an earlier one; an empty one removes it.
LOCKSTEP_API void register_foreign_store(ForeignStoreConnector connector);

// `address` is HOST:PORT.
// Errors: misuse for another form; unsupported without a connector; timeout when no server listens
// there; also the connector's own errors.
LOCKSTEP_API std::shared_ptr<Store> connect_foreign_store(const std::string& address,
                                                          std::string prefix, Deadline deadline);

}  // namespace lockstep
