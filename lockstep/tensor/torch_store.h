// Adapts PyTorch's stores, such as torchrun's, to lockstep::Store.
//
//   auto world = lockstep::init_process_group({.store = lockstep::connect_torch_store()});

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>

#include "lockstep/job/store/store.h"

namespace c10d {
class Store;
}

namespace lockstep {

// Wraps `store`, whose limits apply where they are lower than Store's. Each query for a value first
// calls `look`; wait() queries at least every 50 ms. If the store is unreachable, calls `lost`,
// which may throw a better Error.
// Errors: as Store's; a network error of c10d becomes peer_lost; those of `look` and `lost`.
LOCKSTEP_API std::shared_ptr<Store> adapt(
    c10::intrusive_ptr<c10d::Store> store, std::function<void()> look = [] {},
    std::function<void()> lost = [] {});

// Connects to a c10d::TCPStore at MASTER_ADDR and MASTER_PORT. Rank 0 listens there, unless
// TORCHELASTIC_USE_AGENT_STORE indicates that torchrun does. The store checks no token: anyone who
// can connect can read and write it.
// Errors: misuse without these variables; timeout if nobody listens.
LOCKSTEP_API std::shared_ptr<Store> connect_torch_store();

}  // namespace lockstep
