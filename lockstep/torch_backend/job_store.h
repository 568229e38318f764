// Connects ranks under `lockstep run` to PyTorch's store, which rank 0 serves.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace lockstep::torch_backend {

// Returns the store, or why PyTorch's constructor failed after about `attempt`. Neither after
// `timeout`, because the constructor may wait without limit. It then remains on a thread that never
// takes the GIL, which during finalization would end the process by SIGABRT.
// Errors: as throw_if_launcher_lost_rank() and throw_if_interrupted().
std::pair<c10::intrusive_ptr<c10d::TCPStore>, std::string> connect_to_store(
    const std::string& host, std::uint16_t port, std::size_t world_size, bool use_libuv,
    std::chrono::milliseconds attempt, std::chrono::milliseconds timeout);

}  // namespace lockstep::torch_backend
