// PyTorch's stores as lockstep Stores, so that ranks can rendezvous through the store that torchrun
// started.
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

// Wraps `store`. Its own limits apply where they are narrower than Store's. Each look for a value
// begins with a call of `look`, on the calling thread; those of wait() are at most 50 ms apart.
// When the store cannot be reached, `lost` may throw what it knows of that. Errors: as Store's; a
// network error of c10d becomes peer_lost; those of `look` and `lost`.
LOCKSTEP_API std::shared_ptr<Store> adapt(
    c10::intrusive_ptr<::c10d::Store> store, std::function<void()> look = [] {},
    std::function<void()> lost = [] {});

// Connects to a c10d::TCPStore at MASTER_ADDR and MASTER_PORT. Rank 0 listens there, unless
// TORCHELASTIC_USE_AGENT_STORE says that torchrun does. The store checks no token: everyone who
// reaches the port can read and write it, so nothing secret is stored there.
// Errors: misuse if the variables are not set; timeout if nobody listens.
LOCKSTEP_API std::shared_ptr<Store> connect_torch_store();

}  // namespace lockstep
