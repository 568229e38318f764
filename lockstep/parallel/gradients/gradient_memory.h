// Memory of gradients: layout, padding, and registered memory that all ranks of a host have mapped.
//
// A large gradient is averaged in place: GradientPool lets autograd allocate it in registered
// memory. Small gradients are copied side by side into BucketMemory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Those that require a gradient, each once.
NamedTensors trained_parameters(NamedTensors parameters);

// Returns an uninitialised tensor of the parameter's type and shape, with dense_strides().
at::Tensor like_gradient(const at::Tensor& parameter, std::optional<at::ScalarType> type = {});

// Makes `gradient` writable: with dense_strides(), in memory that no other tensor uses. Copies it
// if necessary; an undefined gradient becomes zeros. For a hook of the parameter's accumulator:
// `incoming` is autograd's tensor, whose memory `gradient` may use.
void make_writable(at::Tensor& gradient, const at::Tensor& parameter, const at::Tensor& incoming);

// Whether a gradient is averaged in place. From this size on, reducing memory in place takes less
// time than copying into registered memory and reducing there. The cost is the number of bytes read
// and written.
constexpr bool is_large_gradient(std::size_t bytes) { return bytes >= std::size_t{256} << 10; }

// Memory for gradients of one element type, side by side. Every rank of the host has mapped it, or
// it lies in a CUDA device's memory.
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

// Registered memory in which autograd itself makes large gradients, so that no sum needs a copy.
//
// While a pool is armed on a thread, a tensor that the thread makes gets its memory from the pool
// if it is exactly as large as a gradient for which the pool has room. Such a tensor need not be a
// gradient. A gradient that finds no room is summed through the ranks' staging buffers.
//
// Thread safety: tensors may be freed on any thread.
class GradientPool : public std::enable_shared_from_this<GradientPool> {
 public:
  // Collective. Room for one tensor of each of these sizes.
  static std::shared_ptr<GradientPool> make(const std::vector<std::size_t>& sizes,
                                            const ProcessGroup& group);

  // Arms `pool` on this thread while it lives; null arms none. Several pools may be armed, because
  // two passes of one backward() end in any order.
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

  // Null when there is no room of exactly that size. Keeps the pool alive until it is freed.
  void* take(std::size_t bytes);
  void give_back(void* room, std::size_t bytes);

 private:
  GradientPool() = default;

  RegisteredMemory memory_;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
};

}  // namespace lockstep
