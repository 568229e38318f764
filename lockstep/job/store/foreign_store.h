// Stores of other launchers, such as torchrun's at MASTER_ADDR and MASTER_PORT. A library that
// implements their protocol registers a connector here.
//
// Thread safety: full.

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
  std::string prefix;  // For all keys: others share the store.
};

using ForeignStoreConnector =
    std::function<std::shared_ptr<Store>(const ForeignStoreAddress&, Deadline)>;

// The connector must respect its deadline, and throws as connect_foreign_store(). An empty one
// removes the earlier one.
LOCKSTEP_API void register_foreign_store(ForeignStoreConnector connector);

// `address` is HOST:PORT. Errors: misuse for another form; unsupported without a connector; timeout
// when no server listens; the connector's own.
LOCKSTEP_API std::shared_ptr<Store> connect_foreign_store(const std::string& address,
                                                          std::string prefix, Deadline deadline);

}  // namespace lockstep
