// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/stage_messages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/list_layout.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t header_bytes = 1024;
constexpr std::size_t place_bytes = cache_line;  // Per rank, at the start of the block.
constexpr int by_messages = -1;

struct Header {
  int slot = by_messages;
  ListLayout list;
  std::vector<bool> needs_gradient;
  std::string structure;
};

std::string encode(const Header& header) {
  std::string flags;
  for (const bool flag : header.needs_gradient) flags += flag ? '1' : '0';
  return ByteWriter(header_bytes)
      .number(header.slot)
      .prefixed(encode_layouts({header.list}))
      .prefixed(flags)
      .prefixed(header.structure)
      .take();
}

Header decode(std::string_view bytes) {
  Header header;
  ByteReader reader(bytes);
  header.slot = reader.number<int>();
  header.list = decode_layouts(reader.prefixed(bytes.size())).at(0);
  for (const char flag : reader.prefixed(bytes.size()))
    header.needs_gradient.push_back(flag == '1');
  header.structure = reader.prefixed(bytes.size());
  reader.end();
  return header;
}

Buffer bytes_buffer(void* data, std::size_t bytes) {
  return {.data = data, .count = bytes, .dtype = DType::uint8};
}

std::atomic_ref<std::int64_t> word_at(const RegisteredMemory& block, std::size_t place) {
  return std::atomic_ref(
      *reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(block.data()) + place));
}

}  // namespace

StageMessages::StageMessages(const ProcessGroup& group, const PipelineOrder& order)
    : group_(group),
      microbatches_(order.microbatches),
      rank_of_stage_(order.rank_of_stage),
      hosts_(sharing_ranks(group, "Pipeline")) {
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
  const int stage = route.boundary + (route.way == Way::gradient ? 1 : 0);
  return rank_of_stage_[static_cast<std::size_t>(stage)];
}

int StageMessages::rank_to(const Route& route) const {
  const int stage = route.boundary + (route.way == Way::output ? 1 : 0);
  return rank_of_stage_[static_cast<std::size_t>(stage)];
}

// Parts: the header, the rest of a long one, the tensors.
std::int64_t StageMessages::tag(const Route& route, int part) const {
  const std::int64_t direction = std::int64_t{2} * route.boundary + (route.way == Way::gradient);
  return (direction * microbatches_ + route.microbatch) * 3 + part;
}

void StageMessages::allocate() {
  std::size_t end = place_bytes * static_cast<std::size_t>(group_.size());
  for (auto& [key, slots] : slots_) {
    slots.bytes = slots.wanted;
    slots.begin = end;
    end = slots.place(slots.count);
  }
  block_ = group_.allocate_shared(end, {.label = "Pipeline"});
}

std::optional<int> StageMessages::take_slot(Slots& slots, std::size_t bytes) const {
  slots.wanted = std::max(slots.wanted, bytes);
  if (bytes > slots.bytes) return std::nullopt;
  for (int slot = 0; slot < slots.count; ++slot) {
    auto is_used = word_at(*block_, slots.place(slot));
    if (is_used.load(std::memory_order_acquire) != 0) continue;
    is_used.store(1, std::memory_order_relaxed);
    return slot;
  }
  return std::nullopt;  // No slots, or a layer still holds its input.
}

void StageMessages::send(const Route& route, const Parcel& parcel, bool in_slots) {
  const int peer = rank_to(route);
  if (peer == group_.rank()) {
    own_.emplace(route, parcel);
    return;
  }
  const at::NoGradGuard no_grad;
  Header header{.list = layout_of(parcel.tensors),
                .needs_gradient = parcel.needs_gradient,
                .structure = parcel.structure};
  Slots& route_slots = slots(route);
  const auto slot =
      in_slots ? take_slot(route_slots, static_cast<std::size_t>(header.list.bytes)) : std::nullopt;
  header.slot = slot.value_or(by_messages);
  const auto block = std::make_shared<at::Tensor>(
      slot ? view_of(*block_, route_slots.elements(*slot), {header.list.bytes}, {1}, at::kByte)
           : at::empty({header.list.bytes}, at::kByte));
  const std::vector<at::Tensor> places = views_of(header.list, *block);
  for (std::size_t i = 0; i < places.size(); ++i)
    if (places[i].defined()) places[i].copy_(parcel.tensors[i]);
  send_header(route, encode(header));
  if (!slot && header.list.bytes > 0)
    sent_.push_back(group_.send_async(bytes_buffer(block->data_ptr(), block->nbytes()), peer,
                                      tag(route, 2), {.keep_alive = block}));
}

// With the length first. The first part has a fixed size.
void StageMessages::send_header(const Route& route, const std::string& header) {
  const auto bytes = std::make_shared<std::string>(
      ByteWriter(header_bytes).number(std::uint64_t{header.size()}).raw(header).take());
  bytes->resize(std::max(header_bytes, bytes->size()));
  const auto send = [&](std::size_t begin, std::size_t end, int part) {
    if (begin < end)
      sent_.push_back(group_.send_async(bytes_buffer(bytes->data() + begin, end - begin),
                                        rank_to(route), tag(route, part), {.keep_alive = bytes}));
  };
  send(0, header_bytes, 0);
  send(header_bytes, bytes->size(), 1);
}

std::string StageMessages::receive_header(const Route& route) {
  const int peer = rank_from(route);
  std::string bytes(header_bytes, '\0');
  group_.recv(bytes_buffer(bytes.data(), bytes.size()), peer, tag(route, 0));
  const std::size_t size = ByteReader(bytes).number<std::uint64_t>();
  const std::size_t end = sizeof(std::uint64_t) + size;
  if (end > header_bytes) {
    bytes.resize(end);
    group_.recv(bytes_buffer(bytes.data() + header_bytes, end - header_bytes), peer, tag(route, 1));
  }
  return bytes.substr(sizeof(std::uint64_t), size);
}

Parcel StageMessages::receive(const Route& route) {
  if (rank_from(route) == group_.rank()) return std::move(own_.extract(route).mapped());
  Header header = decode(receive_header(route));
  at::Tensor block;
  if (header.slot == by_messages) {
    block = at::empty({header.list.bytes}, at::kByte);
    if (header.list.bytes > 0)
      group_.recv(bytes_buffer(block.data_ptr(), block.nbytes()), rank_from(route), tag(route, 2));
  } else {
    const Slots& route_slots = slots(route);
    // The last tensor in the slot frees it.
    block = at::from_blob(
        static_cast<std::byte*>(block_->data()) + route_slots.elements(header.slot),
        {header.list.bytes},
        [memory = *block_, place = route_slots.place(header.slot)](void*) {
          word_at(memory, place).store(0, std::memory_order_release);
        },
        at::kByte);
  }
  Parcel parcel{.tensors = views_of(header.list, block),
                .needs_gradient = std::move(header.needs_gradient),
                .structure = std::move(header.structure)};
  for (at::Tensor& tensor : parcel.tensors)
    if (tensor.defined()) tensor = tensor.variable_data();  // Gives each its own version counter.
  return parcel;
}

std::vector<StepReport> StageMessages::end_step(const StepReport& report) {
  for (const Work& work : std::exchange(sent_, {})) work.wait();
  struct End {
    StepReport report;
    std::int64_t grows = 0;
  };
  const bool grows = std::ranges::any_of(slots_, [](const auto& each) {
    return each.second.count > 0 && each.second.wanted > each.second.bytes;
  });
  std::vector<StepReport> reports;
  bool any_grows = false;
  for (const End& end : all_gather_value(End{report, grows}, group_, {.label = "end of step"})) {
    reports.push_back(end.report);
    any_grows = any_grows || end.grows != 0;
  }
  if (any_grows) {
    std::vector<std::uint64_t> wanted;
    for (const auto& [key, slots] : slots_) wanted.push_back(slots.count > 0 ? slots.wanted : 0);
    group_.all_reduce(buffer_of(wanted), ReduceOp::max, {.label = "sizes of messages"});
    std::size_t next = 0;
    for (auto& [key, slots] : slots_) slots.wanted = wanted[next++];
    allocate();
  }
  return reports;
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
