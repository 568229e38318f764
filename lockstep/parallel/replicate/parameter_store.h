// The memory of shared parameters: mapped by all ranks of a host (shared_parameters.h), in parts on
// several hosts (fully_sharded/gathered_parameters.h), or either of these while they are used on a
// device (fully_sharded/offloaded_parameters.h).
//
// Each rank's optimizer writes to its own fragments in step(). All other writes happen once, in
// edit().
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::parallel {

class ParameterStore {
 public:
  ParameterStore() = default;
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Errors: misuse, with its name, for a parameter that was moved to other memory or was written
  // outside edit(); corrupt if the weights are partially updated.
  virtual void require_intact() const = 0;

  // Whether a step was interrupted, for example by a lost rank, so that only some fragments have
  // been stepped. Call it only while no step is in progress.
  virtual bool is_partially_updated() const = 0;

  // Parameters are read after begin_pass(): until backward() has ended, or in a forward() without
  // gradients. The latter may lie between forward() and backward().
  virtual void begin_pass(bool /*with_gradients*/) {}
  virtual void end_evaluation() noexcept {}
  virtual void end_pass() noexcept {}

  // Collective: runs `use` on all ranks while these parameters are gathered. `use` may only read
  // them.
  // Errors: misuse for a tensor that is not one of the parameters, and if `use` has written to one.
  virtual void with_gathered(const std::vector<at::Tensor>& parameters,
                             const std::function<void()>& use) = 0;

  // Collective: runs `change` on rank 0 while the others wait. It may write to parameters, and may
  // assign other memory of the same type and shape, as torch::load() does. `call` is the user's
  // call. Returns null or, if `change` has thrown, the exception that every rank must throw
  // (replicas.h).
  virtual std::exception_ptr edit(std::string_view call, const std::function<void()>& change) = 0;

  // Errors: misuse if `tensor` is not one of the parameters.
  virtual void require_shared(const at::Tensor& tensor) const = 0;

  // The fragments of a parameter whose gradient is not averaged. Owners are ranks.
  virtual std::vector<Shard> frozen_shards(const at::Tensor& parameter) const = 0;

  // Elements [begin, end) of `parameter` in memory order: a one-dimensional tensor with its own
  // version counter.
  virtual at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                              std::int64_t end) const = 0;

  // A tensor in CPU memory with the form of the parameter: the parameter, unless it is on a device.
  virtual at::Tensor on_host(const at::Tensor& parameter) const { return parameter; }

  // Call before and after this rank writes to its fragments.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // Call on all ranks after a barrier that follows end_step(): no rank writes any longer. Marks
  // these parameters as written for autograd.
  virtual void settle_step(const std::vector<at::Tensor>& written) = 0;

  // Aborts gathers after an exception on this rank with the text `reason`: other ranks that wait
  // for this rank throw Error(aborted). Returns whether there are gathers; if so, the store can
  // load no parameters any more.
  virtual bool abandon(std::string_view /*reason*/) noexcept { return false; }
};

}  // namespace lockstep::parallel
