// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/backend.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/gil.h"
#include "lockstep/torch_backend/parts.h"
#include "lockstep/torch_backend/registered_allocator.h"

namespace lockstep::torch_backend {
namespace {

using Op = c10d::OpType;

Place with_options(Place place, const BackendOptions& options) {
  place.interface = options.interface;
  place.transport = options.transport;
  return place;
}

// Several groups may get one object.
c10::intrusive_ptr<BackendOptions> options_for(const Place& place,
                                               const c10::intrusive_ptr<Backend::Options>& given) {
  const auto ours = c10::dynamic_intrusive_pointer_cast<BackendOptions>(given);
  auto options = ours.defined() ? c10::make_intrusive<BackendOptions>(*ours)
                                : c10::make_intrusive<BackendOptions>();
  options->timeout = place.timeout;
  options->group_name = place.name;
  options->global_ranks_in_group.assign(place.global_ranks.begin(), place.global_ranks.end());
  return options;
}

// The completing thread may hold the last reference.
struct Moved {
  Moved(const Tensors& tensors, std::string_view what)
      : parts(std::make_unique<Parts>(tensors, what)) {}
  ~Moved() {
    if (!before_python_ends([&] { parts.reset(); })) static_cast<void>(parts.release());
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

  std::unique_ptr<Parts> parts;
};

std::shared_ptr<Parts> message_of(const Tensors& tensors, std::string_view what) {
  require(tensors.size() == 1, [&] {
    return std::string(what) + ": one tensor was expected, not " + std::to_string(tensors.size());
  });
  const auto moved = std::make_shared<Moved>(tensors, what);
  return {moved, moved->parts.get()};
}

// Empty if the group does not know them.
std::vector<std::int64_t> global_ranks_of(const std::vector<int>& ranks, const Place& group) {
  std::vector<std::int64_t> global;
  for (const int rank : ranks) {
    require(rank >= 0 && rank < group.size,
            [&] { return "split: there is no rank " + std::to_string(rank); });
    if (group.is_job)
      global.push_back(rank);
    else if (!group.global_ranks.empty())
      global.push_back(group.global_ranks.at(static_cast<std::size_t>(rank)));
  }
  return global;
}

}  // namespace

Backend::Backend(Place place, const c10::intrusive_ptr<Options>& options)
    : Backend(place, options_for(place, options)) {}

Backend::Backend(const Place& place, c10::intrusive_ptr<BackendOptions> options)
    : Collectives(place.rank, place.size, throwing_in_python([&] {
                    // Creating an engine may need the GIL.
                    const WithoutGil without_gil;
                    return Membership::join(with_options(place, *options));
                  })),
      options_(std::move(options)) {}

Backend::~Backend() { membership()->leave(); }

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<BackendOptions>(*options_);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  membership()->set_timeout(timeout);
}

Started Backend::send(Tensors& tensors, int peer, int tag) {
  return throwing_in_python([&] {
    const auto parts = message_of(tensors, "send");
    parts->fill();
    const CallOptions options{.timeout = membership()->timeout_of(c10d::kUnsetTimeout),
                              .keep_alive = parts};
    auto message = membership()->group().send_async(parts->buffer(), peer, tag, options);
    return coalesced(c10::make_intrusive<MessageWork>(
        membership(), Operands{Op::SEND, "lockstep:send", tensors, {tensors}},
        getSequenceNumberForGroup(), std::move(message), nullptr));
  });
}

Started Backend::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, peer, tag, {Op::RECV, "lockstep:recv", tensors, {tensors}});
}

Started Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, any_source, tag,
                 {Op::RECVANYSOURCE, "lockstep:recvAnySource", tensors, {tensors}});
}

Started Backend::receive(Tensors& tensors, int peer, int tag, Operands operands) {
  return throwing_in_python([&] {
    const auto parts = message_of(tensors, "recv");
    const CallOptions options{.timeout = membership()->timeout_of(c10d::kUnsetTimeout),
                              .keep_alive = parts};
    auto message = membership()->group().recv_async(parts->buffer(), peer, tag, options);
    return coalesced(c10::make_intrusive<MessageWork>(
        membership(), std::move(operands), getSequenceNumberForGroup(), std::move(message),
        [parts] { parts->spread(); }));
  });
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return nullptr;
  return throwing_in_python([&] {
    return make({.store = store,
                 .rank = static_cast<int>(own - ranks.begin()),
                 .size = static_cast<int>(ranks.size()),
                 .timeout = opts->timeout,
                 .name = opts->group_name,
                 .global_ranks = global_ranks_of(ranks, membership()->place())},
                opts);
  });
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const c10::intrusive_ptr<Options>& opts,
                                                 const int& rank, const int& size) {
  return make({.store = store,
               .rank = rank,
               .size = size,
               .timeout = opts->timeout,
               .name = opts->group_name},
              opts);
}

c10::intrusive_ptr<c10d::Backend> Backend::make(Place place,
                                                const c10::intrusive_ptr<Options>& options) {
  if (auto last = last_made_with(place.store)) return last;
  const auto store = std::exchange(place.store, place.store->clone());
  c10::intrusive_ptr<c10d::Backend> made = c10::make_intrusive<Backend>(std::move(place), options);
  const std::lock_guard lock(mutex_);
  last_made_.emplace(made);
  last_store_.emplace(store);
  return made;
}

c10::intrusive_ptr<c10d::Backend> Backend::last_made_with(
    const c10::intrusive_ptr<c10d::Store>& store) {
  const std::lock_guard lock(mutex_);
  return last_store_ && last_store_->lock() == store ? last_made_->lock() : nullptr;
}

at::Tensor Backend::allocateTensor(long elements, at::TensorOptions type) {
  return throwing_in_python([&] {
    const RegisteredTensors scope(RegisteredTensors::Demand::always);
    return at::empty({elements}, type);
  });
}

void Backend::abort() { membership()->abort("torch.distributed aborted the group"); }

void Backend::shutdown() { membership()->leave(); }

}  // namespace lockstep::torch_backend
