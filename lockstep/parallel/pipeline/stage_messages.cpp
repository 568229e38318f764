// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/stage_messages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t header_bytes = 1024;
constexpr std::size_t place_bytes = cache_line;  // Of each rank, at the block's begin.
constexpr int by_messages = -1;

// Writes plain values one after another, and reads them again.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }

  template <class T>
  T get() {
    T value;
    check(next_ + sizeof value <= bytes_.size(), "a message of a pipeline is damaged");
    std::memcpy(&value, bytes_.data() + next_, sizeof value);
    next_ += sizeof value;
    return value;
  }
  std::string get_text() {
    const auto size = get<std::uint64_t>();
    check(next_ + size <= bytes_.size(), "a message of a pipeline is damaged");
    next_ += size;
    return bytes_.substr(next_ - size, size);
  }

  const std::string& all() const { return bytes_; }

 private:
  std::string bytes_;
  std::size_t next_ = 0;
};

std::string encode(const Parcel& parcel, int slot) {
  Bytes bytes;
  bytes.put(static_cast<std::int32_t>(slot));
  bytes.put(static_cast<std::uint32_t>(parcel.tensors.size()));
  for (std::size_t i = 0; i < parcel.tensors.size(); ++i) {
    const at::Tensor& tensor = parcel.tensors[i];
    bytes.put(
        static_cast<std::int8_t>(tensor.defined() ? static_cast<int>(tensor.scalar_type()) : -1));
    bytes.put(static_cast<std::uint8_t>(parcel.needs_gradient[i]));
    const at::IntArrayRef sizes = tensor.defined() ? tensor.sizes() : at::IntArrayRef();
    bytes.put(static_cast<std::uint32_t>(sizes.size()));
    for (const std::int64_t size : sizes) bytes.put(size);
  }
  bytes.put_text(parcel.structure);
  return bytes.all();
}

// The tensors have types and shapes, but no memory.
std::pair<Parcel, int> decode(std::string text) {
  Bytes bytes(std::move(text));
  Parcel parcel;
  const int slot = bytes.get<std::int32_t>();
  const auto count = bytes.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    const int type = bytes.get<std::int8_t>();
    parcel.needs_gradient.push_back(bytes.get<std::uint8_t>() != 0);
    std::vector<std::int64_t> sizes(bytes.get<std::uint32_t>());
    for (std::int64_t& size : sizes) size = bytes.get<std::int64_t>();
    parcel.tensors.push_back(
        type < 0
            ? at::Tensor()
            : at::empty(sizes,
                        at::TensorOptions(static_cast<at::ScalarType>(type)).device(at::kMeta)));
  }
  parcel.structure = bytes.get_text();
  return {std::move(parcel), slot};
}

std::size_t bytes_of(const Parcel& parcel) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : parcel.tensors)
    if (tensor.defined()) bytes += padded(tensor.nbytes());
  return bytes;
}

Buffer bytes_buffer(void* data, std::size_t bytes) {
  return {.data = data, .count = bytes, .dtype = DType::uint8};
}

std::atomic_ref<std::int64_t> word_at(const RegisteredMemory& block, std::size_t place) {
  return std::atomic_ref(
      *reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(block.data()) + place));
}

// By rank: the first rank of its host.
std::vector<int> hosts_of(const ProcessGroup& group) {
  const auto memory = group.allocate_shared(cache_line, {.label = "Pipeline"});
  if (group.local_rank() == 0) *static_cast<int*>(memory.data()) = group.rank();
  group.barrier();
  return all_gather_value(*static_cast<const int*>(memory.data()), group);
}

}  // namespace

StageMessages::StageMessages(const ProcessGroup& group, const PipelineOrder& order)
    : group_(group),
      microbatches_(order.microbatches),
      rank_of_stage_(order.rank_of_stage),
      hosts_(hosts_of(group)) {
  const PipelineSlots counts = slots_of(order);
  for (int boundary = 0; boundary + 1 < order.stages(); ++boundary) {
    const auto i = static_cast<std::size_t>(boundary);
    const auto host = [&](std::size_t stage) {
      return hosts_[static_cast<std::size_t>(rank_of_stage_[stage])];
    };
    const bool together = host(i) == host(i + 1);
    slots_[{Way::output, boundary}].count = together ? counts.outputs[i] : 0;
    slots_[{Way::gradient, boundary}].count = together ? counts.gradients[i] : 0;
  }
  allocate();
}

StageMessages::Slots& StageMessages::slots(const Route& route) {
  return slots_.at({route.way, route.boundary});
}

int StageMessages::rank_from(const Route& route) const {
  return rank_of_stage_[static_cast<std::size_t>(route.boundary +
                                                 (route.way == Way::gradient ? 1 : 0))];
}

int StageMessages::rank_to(const Route& route) const {
  return rank_of_stage_[static_cast<std::size_t>(route.boundary +
                                                 (route.way == Way::output ? 1 : 0))];
}

// Parts: the header, the rest of a long one, and the tensors.
std::int64_t StageMessages::tag(const Route& route, int part) const {
  const std::int64_t line = std::int64_t{2} * route.boundary + (route.way == Way::gradient);
  return (line * microbatches_ + route.microbatch) * 3 + part;
}

void StageMessages::allocate() {
  std::size_t end = place_bytes * static_cast<std::size_t>(group_.size());
  for (auto& [key, slots] : slots_) {
    slots.bytes = slots.wanted;
    slots.begin = end;
    end += static_cast<std::size_t>(slots.count) * (cache_line + slots.bytes);
  }
  block_ = group_.allocate_shared(end, {.label = "Pipeline"});
}

void StageMessages::keep(Work work) { sent_.push_back(std::move(work)); }

std::optional<int> StageMessages::put_in_slot(const Route& route, const Parcel& parcel) {
  Slots& line = slots(route);
  const std::size_t bytes = bytes_of(parcel);
  line.wanted = std::max(line.wanted, bytes);
  if (bytes > line.bytes) return std::nullopt;
  for (int slot = 0; slot < line.count; ++slot) {
    const std::size_t begin =
        line.begin + static_cast<std::size_t>(slot) * (cache_line + line.bytes);
    auto is_used = word_at(*block_, begin);
    if (is_used.load(std::memory_order_acquire) != 0) continue;
    is_used.store(1, std::memory_order_relaxed);
    const std::vector<at::Tensor> places = in_slot(route, slot, parcel);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (places[i].defined()) places[i].copy_(parcel.tensors[i]);
    return slot;
  }
  return std::nullopt;  // Only where there are no slots.
}

std::vector<at::Tensor> StageMessages::in_slot(const Route& route, int slot, const Parcel& shapes) {
  const Slots& line = slots(route);
  std::size_t place =
      line.begin + static_cast<std::size_t>(slot) * (cache_line + line.bytes) + cache_line;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& like : shapes.tensors) {
    tensors.push_back(like.defined()
                          ? view_of(*block_, place, like.sizes(),
                                    c10::contiguous_strides(like.sizes()), like.scalar_type())
                          : at::Tensor());
    if (like.defined()) place += padded(like.nbytes());
  }
  return tensors;
}

void StageMessages::send(const Route& route, const Parcel& parcel, bool in_slots) {
  const int peer = rank_to(route);
  if (peer == group_.rank()) {
    own_.emplace(route, parcel);
    return;
  }
  const at::NoGradGuard no_grad;
  const auto slot = in_slots ? put_in_slot(route, parcel) : std::nullopt;
  const std::string header = encode(parcel, slot.value_or(by_messages));
  const auto first = std::make_shared<std::string>(std::max(header_bytes, header.size() + 8), '\0');
  const std::uint64_t size = header.size();
  std::memcpy(first->data(), &size, sizeof size);
  std::memcpy(first->data() + sizeof size, header.data(), header.size());
  keep(group_.send_async(bytes_buffer(first->data(), header_bytes), peer, tag(route, 0),
                         {.keep_alive = first}));
  if (first->size() > header_bytes)
    keep(group_.send_async(bytes_buffer(first->data() + header_bytes, first->size() - header_bytes),
                           peer, tag(route, 1), {.keep_alive = first}));
  if (slot) return;
  for (const at::Tensor& tensor : parcel.tensors)
    if (tensor.defined() && tensor.numel() > 0) {
      const auto kept = std::make_shared<at::Tensor>(tensor.contiguous());
      keep(group_.send_async(bytes_buffer(kept->data_ptr(), kept->nbytes()), peer, tag(route, 2),
                             {.keep_alive = kept}));
    }
}

Parcel StageMessages::receive(const Route& route) {
  if (rank_from(route) == group_.rank()) return std::move(own_.extract(route).mapped());
  const int peer = rank_from(route);
  std::string header(header_bytes, '\0');
  group_.recv(bytes_buffer(header.data(), header.size()), peer, tag(route, 0));
  std::uint64_t size = 0;
  std::memcpy(&size, header.data(), sizeof size);
  if (size + sizeof size > header_bytes) {
    header.resize(size + sizeof size);
    group_.recv(bytes_buffer(header.data() + header_bytes, header.size() - header_bytes), peer,
                tag(route, 1));
  }
  auto [parcel, slot] = decode(header.substr(sizeof size, size));
  if (slot == by_messages) {
    for (at::Tensor& tensor : parcel.tensors) {
      if (!tensor.defined()) continue;
      tensor = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
      if (tensor.numel() > 0)
        group_.recv(bytes_buffer(tensor.data_ptr(), tensor.nbytes()), peer, tag(route, 2));
    }
    return std::move(parcel);
  }
  const std::vector<at::Tensor> places = in_slot(route, slot, parcel);
  const Slots& line = slots(route);
  const std::size_t place = line.begin + static_cast<std::size_t>(slot) * (cache_line + line.bytes);
  // The slot is free when the last tensor in it is gone.
  const std::shared_ptr<void> in_use(nullptr, [block = *block_, place](void*) {
    word_at(block, place).store(0, std::memory_order_release);
  });
  for (std::size_t i = 0; i < places.size(); ++i)
    if (places[i].defined())
      parcel.tensors[i] = at::from_blob(
          places[i].data_ptr(), places[i].sizes(), [in_use, kept = places[i]](void*) {},
          places[i].options());
  return std::move(parcel);
}

double StageMessages::end_step(double value) {
  for (const Work& work : std::exchange(sent_, {})) work.wait();
  struct End {
    double value = 0;
    bool grows = false;
  };
  const bool grows = std::ranges::any_of(slots_, [](const auto& each) {
    return each.second.count > 0 && each.second.wanted > each.second.bytes;
  });
  double sum = 0;
  bool any_grows = false;
  for (const End& end : all_gather_value(End{value, grows}, group_, {.label = "end of step"})) {
    sum += end.value;
    any_grows = any_grows || end.grows;
  }
  if (any_grows) {
    std::vector<std::uint64_t> wanted;
    for (const auto& [key, slots] : slots_) wanted.push_back(slots.count > 0 ? slots.wanted : 0);
    group_.all_reduce(buffer_of(wanted), ReduceOp::max, {.label = "sizes of messages"});
    std::size_t next = 0;
    for (auto& [key, slots] : slots_) slots.wanted = wanted[next++];
    allocate();
  }
  return sum;
}

void StageMessages::set_place(int action) {
  word_at(*block_, place_bytes * static_cast<std::size_t>(group_.rank()))
      .store(action + 1, std::memory_order_relaxed);
}

std::optional<int> StageMessages::place_of(int rank) const {
  const auto i = static_cast<std::size_t>(rank);
  if (hosts_[i] != hosts_[static_cast<std::size_t>(group_.rank())]) return std::nullopt;
  const auto place = word_at(*block_, place_bytes * i).load(std::memory_order_relaxed);
  return place > 0 ? std::optional(static_cast<int>(place) - 1) : std::nullopt;
}

}  // namespace lockstep::parallel
