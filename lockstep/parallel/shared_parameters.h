// The parameters of a module, once for all ranks of a host: in one block of memory that every rank
// has mapped, so that whoever writes to a parameter writes to all ranks' modules.
//
// Each rank's optimizer writes to its own fragments in step(). All else that writes, writes once:
// in edit(). What was written past these two is found by the parameters' version counters, and a
// parameter that was given other memory, by to() or set_data(), by its address.
//
// The block begins with a counter for each rank, of the steps that it has completed. They are
// equal whenever no step is under way, unless a rank was lost in one: then some fragments have been
// stepped and others not, and the weights are torn.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class SharedParameters {
 public:
  // Collective. `parameters`, of which several may be one tensor, become views of the block; their
  // values are rank 0's.
  // Errors: unsupported for what is not in CPU memory; system when the host has too little memory.
  SharedParameters(const NamedTensors& parameters, const ProcessGroup& group);
  SharedParameters(const SharedParameters&) = delete;
  SharedParameters& operator=(const SharedParameters&) = delete;

  // Errors: misuse, by name, for a parameter that lies elsewhere by now or was written to outside
  // of edit(); corrupt when the weights are torn.
  void require_intact() const;

  bool is_torn() const;

  // Collective: runs `change` on rank 0 while the others wait. It may write to parameters, and may
  // give them other memory of the same type and shape, as torch::load() does.
  // Errors: what `change` throws, on rank 0; aborted on the others then.
  void edit(const std::function<void()>& change);

  // Elements [begin, end) of `parameter`, in the order in which they lie in memory: a tensor of one
  // dimension with a version counter of its own. Errors: misuse for a tensor that is not shared.
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin, std::int64_t end) const;

  // Of this rank: its fragments are complete.
  void complete_step();

  // Of all ranks, after a barrier: tells autograd that parameters were written to.
  void note_step();

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

  std::uint64_t& steps_of(int rank) const;
  at::Tensor view(const Place& place) const;
  static bool is_laid_out(const Place& place);
  void change_here(const std::function<void()>& change);
  void remember_versions();

  const ProcessGroup group_;
  std::vector<Place> places_;
  RegisteredMemory memory_;
};

}  // namespace lockstep
