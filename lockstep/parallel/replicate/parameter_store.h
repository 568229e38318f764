// The memory of shared parameters: mapped by a host's ranks (shared_parameters.h), in parts on
// several hosts (fully_sharded/gathered_parameters.h), or used on a device
// (fully_sharded/offloaded_parameters.h).
//
// In an optimizer's step, each rank writes to its own fragments. All other writes happen in edit().
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

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::parallel {

class ParameterStore {
 public:
  ParameterStore() = default;
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Errors: misuse in edit() and, with its name, for a parameter moved or written outside edit().
  // corrupt for partially updated weights.
  virtual void require_intact() const = 0;

  // Whether an interrupted step or edit() may have written only some fragments. Not during a step.
  virtual bool is_partially_updated() const = 0;

  // A pass reads parameters until backward() has ended. An evaluation, a forward() without
  // gradients, may be between forward() and backward().
  virtual void begin_pass(bool /*with_gradients*/) {}
  virtual void end_evaluation() noexcept {}
  virtual void end_pass() noexcept {}

  // Collective: runs `use`, which reads these gathered parameters, on all ranks. Errors: misuse for
  // other tensors, and if `use` has written to one.
  virtual void with_gathered(const std::vector<at::Tensor>& parameters,
                             const std::function<void()>& use) = 0;

  // Collective: runs `change` on rank 0, which may write to parameters, and assign other memory of
  // the same type and shape, as torch::load() does. `call`: the name of the user's call. Returns
  // null or the exception that every rank must throw (attempt_on_rank_0()).
  virtual std::exception_ptr edit(std::string_view call, const std::function<void()>& change) = 0;

  // Errors: misuse for a tensor outside the store.
  virtual void require_shared(const at::Tensor& tensor) const = 0;

  // For a parameter without averaged gradients; owners are ranks.
  virtual std::vector<Shard> frozen_shards(const at::Tensor& parameter) const = 0;

  // Elements [begin, end) in memory order, one-dimensional, with their own version counter.
  virtual at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                              std::int64_t end) const = 0;

  // The parameter or, if on a device, its values in CPU memory.
  virtual at::Tensor on_host(const at::Tensor& parameter) const { return parameter; }

  // Before and after this rank writes.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // After all ranks' end_step(). Marks parameters as written for autograd.
  virtual void settle_step(const std::vector<at::Tensor>& written) = 0;

  // Collective: after a step, waits for all ranks.
  void finish_step(const std::vector<at::Tensor>& written, const ProcessGroup& group,
                   std::string_view label) {
    end_step();
    group.barrier({.label = label});
    settle_step(written);
  }

  // Collective: `change` writes while no rank reads.
  void write(const std::vector<at::Tensor>& written, const ProcessGroup& group,
             const std::function<void()>& change) {
    group.barrier({.label = "parameters are written"});
    begin_step();
    change();
    finish_step(written, group, "parameters were written");
  }

  // Aborts gathers: waiting ranks throw Error(aborted). Returns whether this store gathers; if so,
  // it can load no more parameters.
  virtual bool abandon(std::string_view /*reason*/) noexcept { return false; }
};

}  // namespace lockstep::parallel
