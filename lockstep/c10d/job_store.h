// Connects to PyTorch's store of the job, which rank 0 serves, from other ranks under `lockstep
// run`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace lockstep::c10d {

// Returns the store, or the reason why PyTorch's constructor failed after about `attempt`. Returns
// neither after `timeout`: the constructor waits without a limit for a server that accepts and does
// not reply. It then stays behind on a thread that never takes the GIL. A thread with the GIL could
// end during Python's finalization, and the process would end by SIGABRT.
// Errors: as throw_if_launcher_lost_rank() and throw_if_interrupted().
std::pair<c10::intrusive_ptr<::c10d::TCPStore>, std::string> connect_to_store(
    const std::string& host, std::uint16_t port, std::size_t world_size, bool use_libuv,
    std::chrono::milliseconds attempt, std::chrono::milliseconds timeout);

}  // namespace lockstep::c10d
