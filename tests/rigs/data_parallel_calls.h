// Calls that only some classes for data parallel training have: for others, they must not compile.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>

#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/replicate/noise_scale.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"

namespace lockstep::test {

template <class Ddp>
concept HasCommunicationHooks =
    requires(Ddp& ddp, const CommunicationHook& hook) { ddp.register_comm_hook(hook); };

template <class Ddp>
concept HasShardedGradients =
    requires(Ddp& ddp, WholeParameterOptimizer& optimizer) { ddp.shard_gradients(optimizer); };

template <class Ddp>
concept HasMeanLoss =
    requires(Ddp& ddp, const std::function<at::Tensor()>& closure) { average_loss(ddp, closure); };

template <class Ddp>
concept HasNoSync = requires(Ddp& ddp) { ddp.no_sync(); };

template <class Ddp>
concept HasJoin = requires(Ddp& ddp, const std::function<void()>& train) { ddp.join(train); };

template <class Ddp>
concept HasMicrobatches =
    requires(Ddp& ddp, const MicrobatchLoss& loss_of) { ddp.train_microbatches(0, loss_of); };

template <class Ddp>
concept HasNoiseScale = std::constructible_from<NoiseScale, Ddp&, NoiseScaleOptions>;

}  // namespace lockstep::test
