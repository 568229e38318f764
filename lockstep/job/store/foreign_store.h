// Stores that another launcher keeps, such as torchrun's at MASTER_ADDR and MASTER_PORT. This
// library speaks no protocol of theirs; a library that does says here how.
//
// Thread safety: every function may be called from any thread.

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
  std::string prefix;  // Of all keys: the launcher's own and other jobs' are beside them.
};

using ForeignStoreConnector =
    std::function<std::shared_ptr<Store>(const ForeignStoreAddress&, Deadline)>;

// From now on stores are connected to by `connector`, which blocks until its deadline at most and
// throws as connect_foreign_store(). The last one counts; none is as if there never was one.
LOCKSTEP_API void register_foreign_store(ForeignStoreConnector connector);

// `address` is HOST:PORT.
// Errors: misuse when it is not; unsupported when nobody has registered how; timeout when nobody
// listens there, and what the connector throws besides.
LOCKSTEP_API std::shared_ptr<Store> connect_foreign_store(const std::string& address,
                                                          std::string prefix, Deadline deadline);

}  // namespace lockstep
