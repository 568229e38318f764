// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "lockstep/base/memory.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::int64_t elements_in(std::size_t bytes, at::ScalarType dtype) {
  return static_cast<std::int64_t>(bytes / c10::elementSize(dtype));
}

// --- Memory from the pools that are armed -------------------------------------------------------

thread_local std::vector<std::shared_ptr<GradientPool>> armed;

void* take_armed(std::size_t bytes) {
  for (const auto& pool : armed)
    if (void* const room = pool->take(bytes)) return room;
  return nullptr;
}

class TakenRooms {
 public:
  void add(void* room, std::shared_ptr<GradientPool> pool, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    rooms_[room] = {std::move(pool), bytes};
  }

  bool give_back(void* room) {
    std::unique_lock lock(mutex_);
    const auto found = rooms_.find(room);
    if (found == rooms_.end()) return false;
    const Room taken = std::move(found->second);
    rooms_.erase(found);
    lock.unlock();
    taken.pool->give_back(room, taken.bytes);
    return true;
  }

 private:
  struct Room {
    std::shared_ptr<GradientPool> pool;
    std::size_t bytes;
  };

  std::mutex mutex_;
  std::unordered_map<void*, Room> rooms_;
};

// Never destroyed: tensors may outlive static objects.
TakenRooms& taken_rooms() {
  static auto* const rooms = new TakenRooms;
  return *rooms;
}

// LibTorch's own. install_allocator() makes the first call, which the static object orders before
// other threads' calls.
c10::Allocator& next_allocator() {
  static c10::Allocator& next = *c10::GetCPUAllocator();
  return next;
}

void free_memory(void* data) {
  if (data != nullptr && !taken_rooms().give_back(data)) next_allocator().raw_deleter()(data);
}

// Precedes LibTorch's own allocator. Memory of both is freed by address: oneDNN allocates and frees
// raw memory here.
class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (void* const room = take_armed(bytes))
      return {room, room, &free_memory, c10::Device(c10::DeviceType::CPU)};
    return next_allocator().allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void install_allocator() {
  static const bool installed = [] {
    next_allocator();
    auto* const ours = new PoolAllocator;
    // LibTorch's table is plain memory, which other threads may read now.
    std::atomic_thread_fence(std::memory_order_release);
    c10::SetCPUAllocator(ours, /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

NamedTensors trained_parameters(NamedTensors parameters) {
  NamedTensors trained = distinct(std::move(parameters));
  std::erase_if(trained, [](const auto& named) { return !named.second.requires_grad(); });
  return trained;
}

at::Tensor like_gradient(const at::Tensor& parameter, std::optional<at::ScalarType> type) {
  return at::empty_strided(
      parameter.sizes(), dense_strides(parameter),
      parameter.options().dtype(type.value_or(parameter.scalar_type())).requires_grad(false));
}

GradientForm::GradientForm(const at::Tensor& parameter)
    : sizes_(parameter.sizes().vec()),
      strides_(dense_strides(parameter)),
      options_(parameter.options().requires_grad(false)) {}

at::Tensor GradientForm::make() const { return at::empty_strided(sizes_, strides_, options_); }

bool GradientForm::fits(const at::Tensor& gradient) const {
  return gradient.sizes() == sizes_ && gradient.dtype() == options_.dtype() &&
         parallel::holds_values(gradient) && has_strides(gradient, strides_);
}

bool GradientForm::matches(const at::Tensor& tensor) const {
  return tensor.device() == options_.device() && tensor.dtype() == options_.dtype() &&
         tensor.sizes() == sizes_;
}

std::string GradientForm::change_to(const at::Tensor& parameter) const {
  std::ostringstream text;
  if (parameter.device() != options_.device())
    text << "was moved to " << parameter.device();
  else if (parameter.dtype() != options_.dtype())
    text << "was changed from " << c10::toString(c10::typeMetaToScalarType(options_.dtype()))
         << " to " << c10::toString(parameter.scalar_type());
  else
    text << "was changed from shape " << at::IntArrayRef(sizes_) << " to " << parameter.sizes();
  return text.str();
}

std::vector<GradientForm> gradient_forms(const NamedTensors& parameters) {
  std::vector<GradientForm> forms;
  forms.reserve(parameters.size());
  for (const auto& [name, parameter] : parameters) forms.emplace_back(parameter);
  return forms;
}

// Expects two references: `gradient` and `incoming`. The base of `incoming` is a third if nothing
// else holds it.
bool shares_incoming_memory(const at::Tensor& gradient, const at::Tensor& incoming) {
  if (!incoming.defined() || !gradient.is_alias_of(incoming)) return false;
  const std::size_t tensors = gradient.storage().use_count();
  if (!incoming.is_view()) return tensors > 2;
  return tensors > 3 || incoming._base().use_count() > 1;
}

BucketMemory::BucketMemory(std::size_t bytes, at::ScalarType dtype, c10::Device device,
                           const ProcessGroup& group)
    : dtype_(dtype) {
  if (device.is_cpu())
    registered_ = group.allocate(bytes);
  else
    on_device_ = at::zeros({elements_in(bytes, dtype)}, at::dtype(dtype).device(device));
}

// No autograd view: views share one version counter, and detach_(), which zero_grad(false) calls,
// refuses them.
at::Tensor BucketMemory::view(std::size_t begin, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::ScalarType dtype) const {
  if (registered_) return view_of(*registered_, begin, sizes, strides, dtype);
  at::Tensor tensor = at::empty({0}, on_device_.options().dtype(dtype));
  tensor.set_(on_device_.storage(), elements_in(begin, dtype), sizes, strides);
  return tensor;
}

at::Tensor BucketMemory::tensor(std::size_t begin, at::IntArrayRef sizes,
                                at::IntArrayRef strides) const {
  return view(begin, sizes, strides, dtype_);
}

at::Tensor BucketMemory::flat(std::size_t begin, std::size_t bytes) const {
  const at::ScalarType real = c10::toRealValueType(dtype_);
  return view(begin, {elements_in(bytes, real)}, {1}, real);
}

std::shared_ptr<GradientPool> GradientPool::make(const std::vector<std::size_t>& sizes,
                                                 const ProcessGroup& group) {
  std::shared_ptr<GradientPool> pool(new GradientPool);
  std::size_t total = 0;
  for (const std::size_t bytes : sizes) total += padded(bytes);
  pool->memory_ = group.allocate(total);
  auto* data = static_cast<std::byte*>(pool->memory_.data());
  for (const std::size_t bytes : sizes) {
    pool->free_.emplace(bytes, data);
    data += padded(bytes);
  }
  install_allocator();
  return pool;
}

GradientPool::Arming::Arming(const std::shared_ptr<GradientPool>& pool) : pool_(pool.get()) {
  if (pool != nullptr) armed.push_back(pool);
}

GradientPool::Arming::~Arming() {
  if (pool_ == nullptr || thread_ != std::this_thread::get_id()) return;
  armed.erase(std::find_if(armed.begin(), armed.end(),
                           [&](const auto& pool) { return pool.get() == pool_; }));
}

void* GradientPool::take(std::size_t bytes) {
  std::unique_lock lock(mutex_);
  const auto found = free_.find(bytes);
  if (found == free_.end()) return nullptr;
  void* const room = found->second;
  free_.erase(found);
  lock.unlock();
  taken_rooms().add(room, shared_from_this(), bytes);
  return room;
}

void GradientPool::give_back(void* room, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, room);
}

}  // namespace lockstep
