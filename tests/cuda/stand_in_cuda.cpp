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
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

namespace lockstep::test {
namespace {

constexpr auto cuda = c10::DeviceType::CUDA;

// --- Streams -------------------------------------------------------------------------------------

struct Event {
  std::size_t device;
  c10::StreamId stream;
  std::size_t entries;
};

std::mutex mutex;
std::array<std::vector<StreamEntry>, stand_in_devices> entries;  // By device.
std::array<c10::StreamId, stand_in_devices> streams{};  // How many there are besides the first.

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, stand_in_devices> current_streams{};

std::array<std::atomic<int>, stand_in_devices> host_waits{};  // By device.

void note_host_wait(c10::DeviceIndex device) { ++host_waits.at(static_cast<std::size_t>(device)); }

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
    const std::lock_guard lock(mutex);
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
    const std::lock_guard lock(mutex);
    delete static_cast<Event*>(*event);
    const std::size_t device = index_of(stream.device());
    *event = new Event{device, stream.id(), entries.at(device).size()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(mutex);
    const auto& recorded = *static_cast<Event*>(event);
    entries.at(index_of(stream.device()))
        .push_back({StreamEntry::Kind::wait, stream.id(), recorded.stream, recorded.entries});
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    ++host_waits.at(index_of(stream.device()));
  }
  void synchronizeEvent(void* event) const override {
    ++host_waits.at(static_cast<Event*>(event)->device);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { note_host_wait(device); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static std::size_t index_of(c10::Device device) {
    return static_cast<std::size_t>(device.has_index() ? device.index() : current_device);
  }
};

// Autograd orders the streams of what it asks these for.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return stand_in_devices; }
  void deviceSynchronize(c10::DeviceIndex device) const override { note_host_wait(device); }
};

// --- Memory --------------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t alignment = 512;
    void* const data =
        bytes == 0 ? nullptr
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (bytes > 0 && data == nullptr) throw std::bad_alloc();
    return {data, data, &std::free, {cuda, current_device}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
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

thread_local bool computes_on_host = false;  // Its copies and writes are no program's.

void note_copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && from.is_cuda() && !computes_on_host) note_host_wait(from.device().index());
}

// On the current stream.
void note_write(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.numel() == 0) return;
  const auto device = static_cast<std::size_t>(tensor.device().index());
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::lock_guard lock(mutex);
  entries.at(device).push_back({.kind = StreamEntry::Kind::write,
                                .stream = current_streams.at(device),
                                .memory = {data, tensor.nbytes()}});
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
  if (!computes_on_host) note_write(to);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  note_copy(to, from);
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  note_copy(to, from);
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  on_host(to).copy_(on_host(from));
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

std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional(on_host(*tensor)) : tensor;
}

// That it writes to the running statistics its schema does not say, so compute_on_host() would lose it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  const auto [output, mean, deviation] =
      at::native_batch_norm(on_host(input), on_host(weight), on_host(bias), on_host(running_mean),
                            on_host(running_var), training, momentum, eps);
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

// Those of its arguments that it writes to, as its schema says.
std::vector<at::Tensor> written_by(const c10::FunctionSchema& schema,
                                   const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    const c10::IValue& value = torch::jit::peek(stack, i, arguments.size());
    if (value.isTensor()) written.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& each : value.toTensorList()) written.push_back(each);
  }
  return written;
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.schema().name() == "aten::_local_scalar_dense")
    note_host_wait(torch::jit::peek(*stack, 0, 1).toTensor().device().index());
  const std::vector<at::Tensor> written = written_by(op.schema(), *stack);
  {
    const ComputingOnHost computing;
    at::native::cpu_fallback(op, stack);
  }
  for (const at::Tensor& tensor : written) note_write(tensor);
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
  aten.impl("set_.source_Storage_storage_offset", set);

  static torch::Library rest(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace

bool stand_in_for_cuda() {
  static const bool done = [] {
    if (c10::impl::hasDeviceGuardImpl(cuda)) return false;
    register_all();
    return true;
  }();
  return done;
}

std::vector<StreamEntry> take_stream_entries(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex);
  return std::exchange(entries.at(static_cast<std::size_t>(device)), {});
}

int take_host_waits(c10::DeviceIndex device) {
  return host_waits.at(static_cast<std::size_t>(device)).exchange(0);
}

void note_call(c10::DeviceIndex device, void* native_handle, std::span<const std::byte> memory) {
  const std::lock_guard lock(mutex);
  entries.at(static_cast<std::size_t>(device))
      .push_back({.kind = StreamEntry::Kind::call,
                  .stream = reinterpret_cast<c10::StreamId>(native_handle),
                  .memory = memory});
}

}  // namespace lockstep::test
