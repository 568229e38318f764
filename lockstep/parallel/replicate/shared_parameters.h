// The parameters of a module in one block of memory that every rank of a host has mapped. A write
// to a parameter therefore changes all ranks' modules.
//
// Each rank's optimizer writes to its own fragments in step(). All other writes happen once, in
// edit(). Other writes by ATen's operations are detected by the parameters' version counters. Other
// memory of a parameter, from to() or set_data(), is detected by its address. Writes through data()
// and data_ptr() change no counter and are not detected.
//
// The block begins with one counter per rank, which counts how often the rank has begun and ended
// to write. The counters are equal and even while no step is in progress. If a step was
// interrupted, for example by a lost rank, some fragments have been stepped and others not: the
// weights are torn, and the counters show it.
//
// Lifetime: parameters stay views of the block after this object is destroyed, as long as they
// live.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class SharedParameters {
 public:
  // Collective. `parameters` become views of the block, with rank 0's values; several names may
  // refer to one tensor. Those on the meta device become zeros.
  // Errors: unsupported for ranks on several hosts, for parameters on other devices, and
  // for different tensors that overlap in memory; system if the host has too little memory.
  SharedParameters(const NamedTensors& parameters, const ProcessGroup& group);
  SharedParameters(const SharedParameters&) = delete;
  SharedParameters& operator=(const SharedParameters&) = delete;

  // Errors: misuse, by name, for a parameter that was moved to other memory or was written outside
  // edit(); corrupt if the weights are torn.
  void require_intact() const;

  // Call only while no step is in progress.
  bool is_torn() const;

  // Collective: runs `change` on rank 0 while the others wait. It may write to parameters, and may
  // give them other memory of the same type and shape, as torch::load() does. `call` is the user's.
  // Returns null or, if `change` has thrown, the exception that every rank must throw
  // (replicas.h).
  std::exception_ptr edit(std::string_view call, const std::function<void()>& change);

  // Returns `tensors`. Errors: misuse if one of them is not one of the parameters.
  const std::vector<at::Tensor>& require_shared(const std::vector<at::Tensor>& tensors) const;

  // Elements [begin, end) of `parameter` in memory order: a one-dimensional tensor with its own
  // version counter.
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin, std::int64_t end) const;

  // Call before and after this rank writes to its fragments.
  void begin_step() { count(); }
  void end_step() { count(); }

  // Call on all ranks after a barrier: tells autograd that the parameter was written.
  void note_written(const at::Tensor& parameter);

  // Bytes of the block.
  std::size_t bytes() const { return memory_.bytes(); }
  const RegisteredMemory& memory() const { return memory_; }

 private:
  struct Place {
    std::string name;
    at::Tensor parameter;
    std::size_t offset;  // Bytes from the beginning of the block.
    at::ScalarType dtype;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::uint32_t version = 0;  // Expected version of the parameter.
  };

  std::uint64_t& count_of(int rank) const;
  void count();
  std::size_t index_of(const at::Tensor& parameter) const;
  void lay_out(const NamedTensors& parameters);
  at::Tensor view(const Place& place) const;
  static bool is_laid_out(const Place& place);
  void change_here(const std::function<void()>& change);

  const ProcessGroup group_;
  std::vector<Place> places_;
  std::unordered_map<const void*, std::size_t> indices_;  // Indices into places_, by TensorImpl.
  RegisteredMemory memory_;
  bool editing_ = false;  // Set while this rank runs the `change` of edit().
};

}  // namespace lockstep::parallel
