// A module's parameters in one block of memory that all ranks of a host map.
//
// Version counters detect writes by ATen's operations outside step() and edit(); addresses detect
// to() and set_data(). Nothing detects writes through data() and data_ptr(). Each rank increases
// its own counter in the block when a write begins and ends. If counters are odd or differ outside
// of steps, weights are partially updated.
//
// Lifetime: parameters remain views of the block after this object is destroyed. Thread safety:
// none.

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
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class SharedParameters final : public ParameterStore {
 public:
  // Collective. `parameters` become views of the block, with rank 0's values; zeros if on meta.
  // Errors: unsupported for ranks without common memory, devices other than CPU and meta, and
  // different tensors that overlap in memory. system if the host has too little memory.
  SharedParameters(const NamedTensors& parameters, const ProcessGroup& group);

  void require_intact() const override;
  bool is_partially_updated() const override;
  void with_gathered(const std::vector<at::Tensor>& parameters,
                     const std::function<void()>& use) override;
  std::exception_ptr edit(std::string_view call, const std::function<void()>& change) override;
  void require_shared(const at::Tensor& tensor) const override;
  std::vector<Shard> frozen_shards(const at::Tensor& parameter) const override;
  at::Tensor fragment(const at::Tensor& parameter, std::int64_t begin,
                      std::int64_t end) const override;
  void begin_step() override { count(); }
  void end_step() override { count(); }
  void settle_step(const std::vector<at::Tensor>& written) override;

  std::size_t bytes() const { return memory_.bytes(); }
  const RegisteredMemory& memory() const { return memory_; }

 private:
  struct Place {
    std::string name;
    at::Tensor parameter;
    std::size_t offset;  // In bytes.
    at::ScalarType dtype;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::uint32_t version = 0;
  };

  std::uint64_t& count_of(int rank) const;
  void count();
  std::size_t index_of(const at::Tensor& parameter) const;
  void lay_out(const NamedTensors& parameters);
  at::Tensor view(const Place& place) const;
  static bool is_laid_out(const Place& place);
  void change_here(const std::function<void()>& change);
  void note_written(const at::Tensor& parameter);

  const ProcessGroup group_;
  std::vector<Place> places_;
  std::unordered_map<const void*, std::size_t> indices_;  // Into places_, by TensorImpl.
  RegisteredMemory memory_;
  bool editing_ = false;  // Within `change` of edit().
};

}  // namespace lockstep::parallel
