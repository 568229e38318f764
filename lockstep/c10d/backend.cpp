// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/backend.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/gil.h"
#include "lockstep/c10d/parts.h"
#include "lockstep/c10d/registered_allocator.h"

namespace lockstep::c10d {
namespace {

using Op = ::c10d::OpType;

Place with_options(Place place, const BackendOptions& options) {
  place.interface = options.interface;
  place.transport = options.transport;
  return place;
}

c10::intrusive_ptr<BackendOptions> or_default(c10::intrusive_ptr<BackendOptions> options,
                                              const Place& place) {
  // A copy, as several groups may be given one object.
  options = options.defined() ? c10::make_intrusive<BackendOptions>(*options)
                              : c10::make_intrusive<BackendOptions>();
  options->timeout = place.timeout;
  options->group_name = place.name;
  options->global_ranks_in_group.assign(place.global_ranks.begin(), place.global_ranks.end());
  return options;
}

c10::intrusive_ptr<BackendOptions> ours(const c10::intrusive_ptr<Backend::Options>& options) {
  auto found = c10::dynamic_intrusive_pointer_cast<BackendOptions>(options);
  require(found.defined(), "the options of a group of backend lockstep must be lockstep.Options");
  return c10::make_intrusive<BackendOptions>(*found);
}

std::shared_ptr<Parts> message_of(const Tensors& tensors, std::string_view what) {
  require(tensors.size() == 1, [&] {
    return std::string(what) + ": one tensor was expected, not " + std::to_string(tensors.size());
  });
  return std::make_shared<Parts>(tensors, what);
}

}  // namespace

Backend::Backend(Place place, c10::intrusive_ptr<BackendOptions> options)
    : Collectives(place.rank, place.size, throwing_in_python([&] {
                    const WithoutGil without_gil;  // Other threads may need it to make an engine.
                    options = or_default(std::move(options), place);
                    return Membership::join(with_options(place, *options));
                  })),
      options_(std::move(options)) {}

Backend::~Backend() {
  const WithoutGil without_gil;  // Callbacks that are under way need it.
  membership()->leave();
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  membership()->set_timeout(timeout);
}

Started Backend::send(Tensors& tensors, int peer, int tag) {
  return throwing_in_python([&] {
    const auto parts = message_of(tensors, "send");
    parts->fill();
    const CallOptions options{.timeout = membership()->timeout_of(::c10d::kUnsetTimeout),
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
    const CallOptions options{.timeout = membership()->timeout_of(::c10d::kUnsetTimeout),
                              .keep_alive = parts};
    auto message = membership()->group().recv_async(parts->buffer(), peer, tag, options);
    return coalesced(c10::make_intrusive<MessageWork>(
        membership(), std::move(operands), getSequenceNumberForGroup(), std::move(message),
        [parts] { parts->spread(); }));
  });
}

c10::intrusive_ptr<::c10d::Backend> Backend::split(const c10::intrusive_ptr<::c10d::Store>& store,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  const auto options = ours(opts);
  Place place{.store = store->clone(),
              .rank = static_cast<int>(own - ranks.begin()),
              .size = static_cast<int>(ranks.size()),
              .timeout = options->timeout,
              .name = options->group_name};
  const auto& global = membership()->place().global_ranks;
  for (const int rank : ranks)
    place.global_ranks.push_back(global.empty() ? rank : global.at(static_cast<std::size_t>(rank)));
  return c10::make_intrusive<Backend>(std::move(place), options);
}

c10::intrusive_ptr<::c10d::Backend> Backend::merge(const c10::intrusive_ptr<::c10d::Store>& store,
                                                   const c10::intrusive_ptr<Options>& opts,
                                                   const int& rank, const int& size) {
  const auto options = ours(opts);
  return c10::make_intrusive<Backend>(Place{.store = store->clone(),
                                            .rank = rank,
                                            .size = size,
                                            .timeout = options->timeout,
                                            .name = options->group_name},
                                      options);
}

at::Tensor Backend::allocateTensor(long elements, at::TensorOptions type) {
  return throwing_in_python([&] {
    const RegisteredTensors scope(RegisteredTensors::Demand::always);
    return at::empty({elements}, type);
  });
}

void Backend::abort() { membership()->abort("torch.distributed aborted the group"); }

void Backend::shutdown() { membership()->leave(); }

}  // namespace lockstep::c10d
