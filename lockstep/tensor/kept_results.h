// Operator results that the second forward of a checkpointed block reuses
// (activation_checkpoint.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/generator_states.h"

namespace lockstep::tensor {

// Intercepts operators below autograd by a fallback for DispatchKey::Fake, which C++ programs do
// not use. Costs nothing outside record() and replay(). Errors: unsupported if that key has a
// fallback.
class KeptResults {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Body = std::function<Tensors()>;

  // `name` is for messages. `keep` chooses operators; empty: none.
  KeptResults(std::function<bool(std::string_view)> keep, Generators generators, std::string name);

  // Runs `body`, and appends the results for replay() to `kept`. They share memory with those that
  // `body` received, except results that `body` changes in place or returns.
  Tensors record(const Body& body, Tensors& kept);

  // Errors: misuse if `body` calls other operators than in record().
  Tensors replay(const Body& body, const Tensors& kept);

 private:
  struct Return {
    std::optional<std::size_t> tensor;
    c10::IValue value;  // If it is not a tensor.
  };
  struct Call {
    std::string name;
    std::vector<Return> returns;
    std::optional<GeneratorStates> after;  // If the operator draws random numbers.
  };
  class Session;
  class Recording;
  class Replay;

  const std::function<bool(std::string_view)> keep_;
  const Generators generators_;
  const std::string name_;
  std::vector<Call> calls_;
  std::vector<bool> is_changed_;  // In place by the body; by position in `kept`.
};

}  // namespace lockstep::tensor
