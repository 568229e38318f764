// Memory of gradients. Without a communication hook, large ones on the CPU are averaged in place:
// GradientPool lets autograd allocate them in registered memory. Others are copied to BucketMemory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Those that require a gradient, each once.
NamedTensors trained_parameters(NamedTensors parameters);

// Uninitialised, with the parameter's shape and dense_strides().
at::Tensor like_gradient(const at::Tensor& parameter, std::optional<at::ScalarType> type = {});

// The form in which a parameter's gradient is reduced: shape, type and device at construction, with
// dense_strides(). Equal on all ranks, even if memory formats change.
class GradientForm {
 public:
  explicit GradientForm(const at::Tensor& parameter);

  // Uninitialised.
  at::Tensor make() const;

  // Whether the memory of `gradient` has this shape, type and strides.
  bool fits(const at::Tensor& gradient) const;

  at::IntArrayRef sizes() const { return sizes_; }
  at::IntArrayRef strides() const { return strides_; }

  bool matches(const at::Tensor& tensor) const;

  // Such as "was changed from Float to Double".
  std::string change_to(const at::Tensor& parameter) const;

 private:
  const std::vector<std::int64_t> sizes_;
  const std::vector<std::int64_t> strides_;
  const at::TensorOptions options_;
};

std::vector<GradientForm> gradient_forms(const NamedTensors& parameters);

// Whether `gradient` shares memory with `incoming`, autograd's, and with a third tensor, such as a
// gradient that backward() has not read yet. For a hook of the parameter's accumulator.
bool shares_incoming_memory(const at::Tensor& gradient, const at::Tensor& incoming);

// From this size on, reducing in place is faster than copying into registered memory first.
constexpr bool is_large_gradient(std::size_t bytes) { return bytes >= std::size_t{256} << 10; }

// Memory for gradients of one type: registered, or on a CUDA device.
class BucketMemory {
 public:
  // Zeroed. Collective in CPU memory.
  BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
               const ProcessGroup& group);

  // Empty on a device.
  const std::optional<RegisteredMemory>& registered() const { return registered_; }

  // A tensor at byte `begin` that keeps the memory alive, and is no view for autograd.
  at::Tensor tensor(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides) const;

  // Complex numbers are pairs of reals.
  at::Tensor flat(std::size_t begin, std::size_t bytes) const;

 private:
  at::Tensor view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                  at::ScalarType dtype) const;

  const at::ScalarType dtype_;
  std::optional<RegisteredMemory> registered_;
  at::Tensor on_device_;
};

// An armed pool serves its thread's new tensors of exactly a gradient's size, also those that are
// no gradients.
// Gradients without space are summed through staging buffers.
//
// Thread safety: tensors may be freed on any thread.
class GradientPool : public std::enable_shared_from_this<GradientPool> {
 public:
  // Collective. For one tensor of each size.
  static std::shared_ptr<GradientPool> make(const std::vector<std::size_t>& sizes,
                                            const ProcessGroup& group);

  // Arms `pool`, unless null, on this thread. Only a destructor on this thread disarms it. Several
  // may be armed: two passes of one backward() may end in any order.
  class Arming {
   public:
    explicit Arming(const std::shared_ptr<GradientPool>& pool);
    ~Arming();
    Arming(const Arming&) = delete;
    Arming& operator=(const Arming&) = delete;

   private:
    const GradientPool* const pool_;
    const std::thread::id thread_ = std::this_thread::get_id();
  };

  const RegisteredMemory& memory() const { return memory_; }

  // Null if no memory of that size is free. Keeps the pool alive until LibTorch frees the memory.
  void* take(std::size_t bytes);
  void give_back(void* room, std::size_t bytes);

 private:
  GradientPool() = default;

  RegisteredMemory memory_;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
};

}  // namespace lockstep
