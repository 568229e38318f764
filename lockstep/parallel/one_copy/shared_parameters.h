// The parameters of a module, once for all ranks of a host: in one block of memory that every rank
// has mapped, so that whoever writes to a parameter writes to all ranks' modules.
//
// Each rank's optimizer writes to its own fragments in step(). All else that writes, writes once:
// in edit(). What ATen's operations have written past these two is found by the parameters' version
// counters, and a parameter that was given other memory, by to() or set_data(), by its address.
// Writes through data() and data_ptr() move no counter, and are not found.
//
// The block begins with a counter for each rank, of how often it has begun and ended to write. They
// are equal and even whenever no step is under way, unless one was cut short, because a rank was
// lost say: then some fragments have been stepped and others not, and the weights are torn.
//
// Lifetime: parameters stay views of the block after this is gone, as long as they live.
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
#include <unordered_map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class SharedParameters {
 public:
  // Collective. `parameters`, of which several may be one tensor, become views of the block; their
  // values are rank 0's.
  // Errors: unsupported for ranks on several hosts, for what is not in CPU memory, and for two that
  // lie in the same memory; system when the host has too little memory.
  SharedParameters(const NamedTensors& parameters, const ProcessGroup& group);
  SharedParameters(const SharedParameters&) = delete;
  SharedParameters& operator=(const SharedParameters&) = delete;

  // Errors: misuse, by name, for a parameter that lies elsewhere by now or was written to outside
  // of edit(); corrupt when the weights are torn.
  void require_intact() const;

  // While no step is under way.
  bool is_torn() const;

  // Collective: runs `change` on rank 0 while the others wait. It may write to parameters, and may
  // give them other memory of the same type and shape, as torch::load() does.
  // Returns null or, when `change` has thrown, what every rank is to throw (on_rank_0.h).
  std::exception_ptr edit(const std::function<void()>& change);

  // Returns `tensors`. Errors: misuse when one of them is none of the parameters.
  const std::vector<at::Tensor>& require_shared(const std::vector<at::Tensor>& tensors) const;

  // Elements [begin, end) of `parameter`, in the order in which they lie in memory: a tensor of one
  // dimension with a version counter of its own.
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin, std::int64_t end) const;

  // Around what this rank writes to its fragments.
  void begin_step() { count(); }
  void end_step() { count(); }

  // Of all ranks, after a barrier: tells autograd that a parameter was written to.
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
    std::uint32_t version = 0;  // That nobody has written past.
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
  std::unordered_map<const void*, std::size_t> indices_;  // Of places_, by TensorImpl.
  RegisteredMemory memory_;
  bool editing_ = false;  // This rank is in the `change` of edit().
};

}  // namespace lockstep
