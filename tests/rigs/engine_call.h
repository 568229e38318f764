// A collective in terms of the engine ABI, for tests of plugins.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::test {

struct EngineCall {
  lockstep_buffer input = {};
  lockstep_buffer output = {};
  std::uint8_t reduce_op = static_cast<std::uint8_t>(ReduceOp::sum);
  int root = 0;
  const std::size_t* send_counts = nullptr;
  const std::size_t* receive_counts = nullptr;
};

// Returns what `engine` returns.
inline int run(const lockstep_engine& engine, void* communicator, Operation operation,
               const EngineCall& call, lockstep_engine_error* error) {
  const lockstep_collective collective{.struct_bytes = sizeof collective,
                                       .operation = static_cast<std::uint8_t>(operation),
                                       .reduce_op = call.reduce_op,
                                       .root = call.root,
                                       .input = call.input,
                                       .output = call.output,
                                       .send_counts = call.send_counts,
                                       .receive_counts = call.receive_counts};
  return engine.run(communicator, &collective, error);
}

}  // namespace lockstep::test
