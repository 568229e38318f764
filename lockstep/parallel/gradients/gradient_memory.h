// Memory of gradients: layout, padding, and registered memory that all ranks of a host have mapped.
//
// A large gradient is averaged in place: GradientPool lets autograd allocate it in registered
// memory. Small gradients are copied side by side into BucketMemory.

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

// Parameters that require a gradient, each once.
NamedTensors trained_parameters(NamedTensors parameters);

// Returns an uninitialised tensor of the parameter's type and shape, with dense_strides().
at::Tensor like_gradient(const at::Tensor& parameter, std::optional<at::ScalarType> type = {});

// The form in which the gradient of a parameter is reduced: the parameter's shape, type and device
// at construction, with dense_strides(). It is the same on all ranks, even if a parameter's memory
// format changes later.
class GradientForm {
 public:
  explicit GradientForm(const at::Tensor& parameter);

  // An uninitialised tensor of this form.
  at::Tensor make() const;

  // Whether the memory of `gradient` has this form.
  bool fits(const at::Tensor& gradient) const;

  at::IntArrayRef sizes() const { return sizes_; }
  at::IntArrayRef strides() const { return strides_; }

  // Whether a tensor has the shape, type and device.
  bool matches(const at::Tensor& tensor) const;

  // Describes the change of a parameter that no longer matches: "was changed from Float to Double".
  std::string change_to(const at::Tensor& parameter) const;

 private:
  const std::vector<std::int64_t> sizes_;
  const std::vector<std::int64_t> strides_;
  const at::TensorOptions options_;
};

// By parameter.
std::vector<GradientForm> gradient_forms(const NamedTensors& parameters);

// Whether another tensor uses the memory that `gradient` shares with `incoming`, autograd's tensor:
// for example another gradient that backward() has not read yet. False if `gradient` and `incoming`
// have different memory. For a hook of the parameter's accumulator.
bool shares_incoming_memory(const at::Tensor& gradient, const at::Tensor& incoming);

// Whether a gradient is averaged in place. For at least this many bytes, reducing in place takes
// less time than copying into registered memory and reducing there. The cost is the number of bytes
// read and written.
constexpr bool is_large_gradient(std::size_t bytes) { return bytes >= std::size_t{256} << 10; }

// Memory for gradients of one element type, side by side: mapped by every rank of the host, or on a
// CUDA device.
class BucketMemory {
 public:
  // The memory is zeroed. Collective in CPU memory.
  BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
               const ProcessGroup& group);

  // Empty on a device.
  const std::optional<RegisteredMemory>& registered() const { return registered_; }

  // Returns a tensor at byte `begin` that keeps the memory alive. Autograd does not treat it as a
  // view of another tensor. Strides count elements.
  at::Tensor tensor(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides) const;

  // The memory as one flat tensor. Complex numbers are pairs of reals.
  at::Tensor flat(std::size_t begin, std::size_t bytes) const;

 private:
  at::Tensor view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                  at::ScalarType dtype) const;

  const at::ScalarType dtype_;
  std::optional<RegisteredMemory> registered_;
  at::Tensor on_device_;
};

// Registered memory in which autograd itself allocates large gradients, so that summing needs no
// copy.
//
// A pool that is armed on a thread provides the memory of new tensors there. It serves each tensor
// of exactly the size of a gradient for which it has free space, also one that is no gradient. A
// gradient without space in the pool is summed through the ranks' staging buffers.
//
// Thread safety: tensors may be freed on any thread.
class GradientPool : public std::enable_shared_from_this<GradientPool> {
 public:
  // Collective. Reserves memory for one tensor of each of these sizes.
  static std::shared_ptr<GradientPool> make(const std::vector<std::size_t>& sizes,
                                            const ProcessGroup& group);

  // Arms `pool` on this thread while it exists; null arms none. Several pools may be armed, because
  // two passes of one backward() may end in any order.
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

  // Returns null if no memory of exactly that size is free. The memory keeps the pool alive until
  // it is freed.
  void* take(std::size_t bytes);
  void give_back(void* room, std::size_t bytes);

 private:
  GradientPool() = default;

  RegisteredMemory memory_;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
};

}  // namespace lockstep
