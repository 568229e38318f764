// The memory of shared parameters. Mapped by all ranks of a host: shared_parameters.h. In parts on
// several hosts: fully_sharded/gathered_parameters.h. Used on a device:
// fully_sharded/offloaded_parameters.h.
//
// In step(), each rank writes to its own fragments. All other writes happen in edit().
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

  // Errors: misuse, with its name, for a parameter that was moved or written outside edit().
  // corrupt if the weights are partially updated.
  virtual void require_intact() const = 0;

  // Whether an interrupted step has stepped only some fragments. Call it while no step is in
  // progress.
  virtual bool is_partially_updated() const = 0;

  // Parameters are read until backward() has ended, or in a forward() without gradients, which may
  // lie between forward() and backward().
  virtual void begin_pass(bool /*with_gradients*/) {}
  virtual void end_evaluation() noexcept {}
  virtual void end_pass() noexcept {}

  // Collective: runs `use` on all ranks while these parameters are gathered. `use` may only read
  // them. Errors: misuse for other tensors, and if `use` has written to one.
  virtual void with_gathered(const std::vector<at::Tensor>& parameters,
                             const std::function<void()>& use) = 0;

  // Collective: runs `change` on rank 0. It may write to parameters, and may assign other memory of
  // the same type and shape, as torch::load() does. `call` is the user's call. Returns null or the
  // exception that every rank must throw (replicas.h).
  virtual std::exception_ptr edit(std::string_view call, const std::function<void()>& change) = 0;

  // Errors: misuse if `tensor` is no such parameter.
  virtual void require_shared(const at::Tensor& tensor) const = 0;

  // For a parameter whose gradient is not averaged. Owners are ranks.
  virtual std::vector<Shard> frozen_shards(const at::Tensor& parameter) const = 0;

  // Elements [begin, end) in memory order: a one-dimensional tensor with its own version counter.
  virtual at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                              std::int64_t end) const = 0;

  // In CPU memory, with the parameter's form: the parameter, unless it is on a device.
  virtual at::Tensor on_host(const at::Tensor& parameter) const { return parameter; }

  // Before and after this rank writes.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // On all ranks, after a barrier that follows end_step(). Marks parameters as written for
  // autograd.
  virtual void settle_step(const std::vector<at::Tensor>& written) = 0;

  // Aborts gathers because of `reason`: waiting ranks throw Error(aborted). Returns whether there
  // are gathers; the store can then load no parameters any more.
  virtual bool abandon(std::string_view /*reason*/) noexcept { return false; }
};

}  // namespace lockstep::parallel
