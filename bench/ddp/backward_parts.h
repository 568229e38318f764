// STUB until DistributedDataParallel has times() and the option find_unused_parameters, the only
// place that knows of them: without them the parts are absent, and the option is refused. Once they
// are merged each `if constexpr` goes, with what is behind its else.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/parallel/distributed_data_parallel.h>

#include <chrono>
#include <optional>
#include <stdexcept>

#include "bench/ddp/options.h"

// Of the time of all backward() passes: bringing gradients into their buckets, waiting for other
// ranks to do so, and adding up.
struct BackwardParts {
  std::chrono::nanoseconds copy{}, wait{}, reduce{};
};

template <class Ddp>
std::optional<BackwardParts> backward_parts(const Ddp& ddp) {
  if constexpr (requires { ddp.times().copy; })
    return BackwardParts{ddp.times().copy, ddp.times().wait, ddp.times().reduce};
  else
    return std::nullopt;
}

template <class DdpOptions = lockstep::DistributedDataParallelOptions>
DdpOptions ddp_options(const Options& options) {
  DdpOptions ddp;
  ddp.broadcast_buffers = options.broadcast_buffers;
  if constexpr (requires { ddp.find_unused_parameters; })
    ddp.find_unused_parameters = options.find_unused;
  else if (options.find_unused)
    throw std::runtime_error("this DistributedDataParallel has no find_unused_parameters");
  return ddp;
}
