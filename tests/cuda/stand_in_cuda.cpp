// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/stand_in_cuda.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "lockstep/tensor/vector_math.h"
#include "tests/cuda/stream_order.h"

namespace lockstep::test {
namespace {

constexpr auto cuda = c10::DeviceType::CUDA;

// --- Chaos ---------------------------------------------------------------------------------------

std::atomic<int> chaos{0};  // Number of Chaos objects.

// Usually a short time; sometimes long enough for all other threads to continue.
void hold_up() {
  if (chaos == 0) return;
  thread_local std::minstd_rand random(std::random_device{}());
  constexpr unsigned most = 10;  // 2^10 us.
  const unsigned draw = static_cast<unsigned>(random()) % 64;
  if (draw > most) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(1U << draw));
}

// --- Streams -------------------------------------------------------------------------------------

struct Event {
  std::size_t device;
  c10::StreamId stream;
  std::size_t entries;
  StreamOrder::Moment moment;
};

std::mutex device_mutex;
std::array<std::vector<StreamEntry>, stand_in_devices> entries;  // By device.
std::array<StreamOrder, stand_in_devices> orders;
std::array<c10::StreamId, stand_in_devices> streams{};  // Number of streams besides the first.

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, stand_in_devices> current_streams{};

std::array<std::atomic<int>, stand_in_devices> host_waits{};  // By device.

// Records what `wait` adds to the device's order.
template <class Wait>
void note_host_wait(std::size_t device, Wait wait) {
  ++host_waits.at(device);
  const std::lock_guard lock(device_mutex);
  wait(orders.at(device));
}

void note_host_wait_for_device(c10::DeviceIndex device) {
  note_host_wait(static_cast<std::size_t>(device),
                 [](StreamOrder& order) { order.wait_on_host(); });
}

void note_host_wait_for_stream(std::size_t device, c10::StreamId stream) {
  note_host_wait(device, [=](StreamOrder& order) { order.wait_on_host(order.record(stream)); });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return cuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {cuda, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {cuda, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return stand_in_devices; }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_streams.at(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    const std::lock_guard lock(device_mutex);
    return c10::Stream(c10::Stream::UNSAFE, device, ++streams.at(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, stream.device(),
                       std::exchange(current_streams.at(index_of(stream.device())), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    hold_up();
    const std::lock_guard lock(device_mutex);
    delete static_cast<Event*>(*event);
    const std::size_t device = index_of(stream.device());
    *event = new Event{device, stream.id(), entries.at(device).size(),
                       orders.at(device).record(stream.id())};
  }
  void block(void* event, const c10::Stream& stream) const override {
    hold_up();
    const std::lock_guard lock(device_mutex);
    const auto& recorded = *static_cast<Event*>(event);
    const std::size_t device = index_of(stream.device());
    entries.at(device).push_back(
        {StreamEntry::Kind::wait, stream.id(), recorded.stream, recorded.entries});
    if (recorded.device == device) orders.at(device).wait(stream.id(), recorded.moment);
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_host_wait_for_stream(index_of(stream.device()), stream.id());
  }
  void synchronizeEvent(void* event) const override {
    const auto& recorded = *static_cast<Event*>(event);
    note_host_wait(recorded.device,
                   [&](StreamOrder& order) { order.wait_on_host(recorded.moment); });
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    note_host_wait_for_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    const std::lock_guard lock(device_mutex);
    orders.at(index_of(stream.device())).keep_for(stream.id(), data.get());
  }

 private:
  static std::size_t index_of(c10::Device device) {
    return static_cast<std::size_t>(device.has_index() ? device.index() : current_device);
  }
};

// Host memory that a device could copy by itself.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(bytes);
    const auto* begin = static_cast<const std::byte*>(data.get());
    const std::lock_guard lock(mutex_);
    ranges_.emplace(begin, begin + bytes);  // Permanently: tests ask only about live memory.
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetDefaultCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool holds(const void* data) const {
    const auto* place = static_cast<const std::byte*>(data);
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        ranges_, [&](const auto& range) { return place >= range.first && place < range.second; });
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::pair<const std::byte*, const std::byte*>> ranges_;
};

PinnedMemory pinned_memory;

// Autograd queries these hooks, and orders the streams that they return.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return stand_in_devices; }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    note_host_wait_for_device(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override { return pinned_memory.holds(data); }
};

// --- Memory --------------------------------------------------------------------------------------

void free_memory(void* data) {
  hold_up();
  {
    const std::lock_guard lock(device_mutex);
    for (StreamOrder& order : orders)
      if (order.free(data)) break;
  }
  std::free(data);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t alignment = 512;
    void* const data =
        bytes == 0 ? nullptr
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (bytes > 0 && data == nullptr) throw std::bad_alloc();
    const auto device = static_cast<std::size_t>(current_device);
    const std::lock_guard lock(device_mutex);
    orders.at(device).allocate(current_streams.at(device),
                               {static_cast<const std::byte*>(data), bytes});
    return {data, data, &free_memory, {cuda, current_device}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;

// The same memory, for the CPU's kernels.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

// --- Kernels -------------------------------------------------------------------------------------

thread_local bool computes_on_host = false;  // Its copies and writes are not the program's.

bool is_in_use(const at::Tensor& tensor) {
  return !computes_on_host && tensor.defined() && tensor.is_cuda() && tensor.numel() > 0;
}

std::size_t index_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.device().index());
}

// The bytes from the first element to the last.
StreamOrder::Memory memory_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(last + 1) * tensor.element_size()};
}

// On the current stream.
void note_use(const at::Tensor& tensor, StreamOrder::Kind kind) {
  if (!is_in_use(tensor)) return;
  const std::size_t device = index_of(tensor);
  const std::lock_guard lock(device_mutex);
  orders.at(device).use(current_streams.at(device), memory_of(tensor), kind);
}

// For a tensor that existed before.
void note_write(const at::Tensor& tensor) {
  if (!is_in_use(tensor)) return;
  note_use(tensor, StreamOrder::Kind::write);
  const std::size_t device = index_of(tensor);
  const std::lock_guard lock(device_mutex);
  entries.at(device).push_back({.kind = StreamEntry::Kind::write,
                                .stream = current_streams.at(device),
                                .memory = memory_of(tensor)});
}

// The host waits for everything that has read `tensor` on the current stream.
void note_host_wait(const at::Tensor& tensor) {
  note_host_wait_for_stream(index_of(tensor), current_streams.at(index_of(tensor)));
}

void note_copy(const at::Tensor& to, const at::Tensor& from) {
  if (computes_on_host) return;
  hold_up();
  note_use(from, StreamOrder::Kind::read);
  if (to.is_cpu() && from.is_cuda()) note_host_wait(from);
}

const c10::DispatchKeySet keys{c10::DispatchKey::CUDA};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(
      at::detail::empty_generic(size, &memory, keys, dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(
      at::detail::empty_strided_generic(size, stride, &memory, keys, dtype.value_or(at::kFloat)));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  note_copy(to, from);
  on_host(to).copy_(on_host(from));
  note_write(to);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  note_copy(to, from);
  on_host(to).copy_(on_host(from));
  note_use(to, StreamOrder::Kind::write);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  note_copy(to, from);
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  on_host(to).copy_(on_host(from));
  note_use(to, StreamOrder::Kind::write);
  return to;
}

at::Tensor& set(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef size,
                at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

void record_stream(at::Tensor& self, at::Stream stream) {
  c10::impl::VirtualGuardImpl(cuda).recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional(on_host(*tensor)) : tensor;
}

// Its schema does not declare the write to the running statistics, so compute_on_host() would lose
// it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  hold_up();
  for (const auto& read : {std::optional(input), weight, bias, running_mean, running_var})
    if (read) note_use(*read, StreamOrder::Kind::read);
  const auto [output, mean, deviation] =
      at::native_batch_norm(on_host(input), on_host(weight), on_host(bias), on_host(running_mean),
                            on_host(running_var), training, momentum, eps);
  for (const auto& written : {running_mean, running_var})
    if (training && written) note_use(*written, StreamOrder::Kind::write);
  const at::Device device = input.device();
  return {output.to(device), mean.to(device), deviation.to(device)};
}

struct ComputingOnHost {
  ComputingOnHost() : before(std::exchange(computes_on_host, true)) {}
  ~ComputingOnHost() { computes_on_host = before; }
  ComputingOnHost(const ComputingOnHost&) = delete;
  ComputingOnHost& operator=(const ComputingOnHost&) = delete;

  const bool before;
};

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>{};
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// The arguments that it writes to, by its schema, or those that it only reads.
std::vector<at::Tensor> arguments_of(const c10::FunctionSchema& schema,
                                     const torch::jit::Stack& stack, StreamOrder::Kind kind) {
  std::vector<at::Tensor> found;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (is_write(arguments[i]) == (kind == StreamOrder::Kind::write))
      for (const at::Tensor& each : tensors_in(torch::jit::peek(stack, i, arguments.size())))
        found.push_back(each);
  return found;
}

std::vector<at::Tensor> results_of(const c10::FunctionSchema& schema,
                                   const torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  const std::size_t results = schema.returns().size();
  for (std::size_t i = 0; i < results; ++i)
    for (const at::Tensor& each : tensors_in(torch::jit::peek(stack, i, results)))
      found.push_back(each);
  return found;
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  hold_up();
  const auto read = arguments_of(op.schema(), *stack, StreamOrder::Kind::read);
  const auto written = arguments_of(op.schema(), *stack, StreamOrder::Kind::write);
  for (const at::Tensor& tensor : read) note_use(tensor, StreamOrder::Kind::read);
  if (op.schema().name() == "aten::_local_scalar_dense") note_host_wait(read.front());
  {
    const ComputingOnHost computing;
    at::native::cpu_fallback(op, stack);
  }
  for (const at::Tensor& tensor : written) note_write(tensor);
  if (!written.empty()) return;
  for (const at::Tensor& tensor : results_of(op.schema(), *stack))
    note_use(tensor, StreamOrder::Kind::write);
}

void register_all() {
  static const Guard guard;
  c10::impl::registerDeviceGuard(cuda, &guard);
  c10::SetAllocator(cuda, &memory);
  at::CUDAHooksRegistry()->Register("CUDAHooks",
                                    [](at::CUDAHooksArgs) { return std::make_unique<Hooks>(); });

  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__,
                             __LINE__);
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("copy_", copy);
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("as_strided", at::native::as_strided_tensorimpl);
  aten.impl("view", at::native::view);
  aten.impl("_reshape_alias", at::native::_reshape_alias);
  aten.impl("resize_", resize);
  aten.impl("native_batch_norm", batch_norm);
  aten.impl("record_stream", record_stream);
  aten.impl("set_.source_Storage_storage_offset", set);

  static torch::Library rest(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace

bool stand_in_for_cuda() {
  static const bool done = [] {
    if (c10::impl::hasDeviceGuardImpl(cuda)) return false;
    register_all();
    settle_vector_math();  // Ranks that are threads would make the first call concurrently.
    if (std::getenv("LOCKSTEP_CUDA_CHAOS") != nullptr) ++chaos;
    return true;
  }();
  return done;
}

std::vector<StreamEntry> take_stream_entries(c10::DeviceIndex device) {
  const std::lock_guard lock(device_mutex);
  return std::exchange(entries.at(static_cast<std::size_t>(device)), {});
}

int take_host_waits(c10::DeviceIndex device) {
  return host_waits.at(static_cast<std::size_t>(device)).exchange(0);
}

std::vector<std::string> take_order_faults(c10::DeviceIndex device) {
  const std::lock_guard lock(device_mutex);
  return orders.at(static_cast<std::size_t>(device)).take_faults();
}

void note_call(c10::DeviceIndex device, void* native_handle, std::span<const std::byte> memory) {
  hold_up();
  const auto index = static_cast<std::size_t>(device);
  const auto stream = reinterpret_cast<c10::StreamId>(native_handle);
  const std::lock_guard lock(device_mutex);
  orders.at(index).use(stream, memory, StreamOrder::Kind::write);
  entries.at(index).push_back(
      {.kind = StreamEntry::Kind::call, .stream = stream, .memory = memory});
}

Chaos::Chaos() { ++chaos; }
Chaos::~Chaos() { --chaos; }

}  // namespace lockstep::test
