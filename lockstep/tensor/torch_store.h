// PyTorch's stores as ours, so that a program meets through what torchrun has started.
//
//   auto world = lockstep::init_process_group({.store = lockstep::connect_torch_store()});

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "lockstep/job/store/store.h"

namespace c10d {
class Store;
}

namespace lockstep {

// The same map. Its limits are those of `store`, where they are narrower than ours.
// Errors: as Store's; an error of c10d's network is peer_lost.
LOCKSTEP_API std::shared_ptr<Store> adapt(c10::intrusive_ptr<c10d::Store> store);

// A c10d::TCPStore at MASTER_ADDR and MASTER_PORT. Rank 0 listens there, unless
// TORCHELASTIC_USE_AGENT_STORE says that torchrun does. It knows no token: whoever reaches the port
// can read and write it, so nothing secret is kept there.
// Errors: misuse when the variables are not set; timeout when nobody listens.
LOCKSTEP_API std::shared_ptr<Store> connect_torch_store();

}  // namespace lockstep
