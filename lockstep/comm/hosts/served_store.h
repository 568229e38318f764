// A store server that one rank opens for others, with this rank's own client.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

struct ServedStore {
  // Listens at the address and port in `options`; port 0 takes any free one.
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
