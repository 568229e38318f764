// A store that one rank opens for others, with its own connection to it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/job/store/tcp_store.h"
#include "lockstep/job/store/tcp_store_server.h"

namespace lockstep {

struct ServedStore {
  // It listens at the address and port that `options` is to connect to; with port 0 at any free
  // one.
  explicit ServedStore(TcpStoreOptions options)
      : server({.address = options.host,
                .port = options.port,
                .job = options.member,
                .token = options.token}),
        store((options.port = server.port(), options)) {}

  TcpStoreServer server;
  TcpStore store;
};

}  // namespace lockstep
