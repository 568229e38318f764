// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/crossing.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/given_up.h"

namespace lockstep {

HostsBackend::Crossing::Crossing(HostsBackend& backend, const Call& call,
                                 EngineCommunicator& engine, const Collective& collective,
                                 std::size_t slot)
    : backend_(backend),
      call_(call),
      engine_(engine),
      collective_(collective),
      result_(collective.output),
      kept_(std::make_shared<std::vector<std::shared_ptr<const void>>>()) {
  if (engine_.can_cancel()) return;
  keep(collective_.input, staged_input + slot, true);
  keep(collective_.output, staged_output + slot, is_in_place(collective_.signature.operation));
}

HostsBackend::Crossing::~Crossing() {
  if (is_under_way_) engine_.give_up();
}

void HostsBackend::Crossing::keep(Buffer& buffer, std::size_t scratch, bool is_read) {
  if (buffer.bytes() == 0) return;
  std::shared_ptr<const void> owner = backend_.kept_.owner_of(buffer);
  if (!owner) {
    const Buffer copy = backend_.kept_.scratch(scratch, buffer);
    if (is_read) std::memcpy(copy.data, buffer.data, buffer.bytes());
    buffer = copy;
    owner = backend_.kept_.owner_of(buffer);
  }
  kept_->push_back(std::move(owner));
}

void HostsBackend::Crossing::start() {
  engine_.start(collective_, kept_);
  is_under_way_ = true;
}

void HostsBackend::Crossing::wait() {
  try {
    is_under_way_ = false;  // The engine itself gives up a failed call.
    engine_.wait(call_.deadline, [&] { backend_.throw_if_over(call_.outer); });
  } catch (const GroupGivenUp&) {
    throw;
  } catch (const Error& error) {
    const bool may_be_explained =
        error.fault() == Fault::system ||
        (error.fault() == Fault::peer_lost && !error.failure());  // From Gloo: a connection ended.
    if (may_be_explained)
      backend_.throw_if_explained(call_);
    else if (error.fault() != Fault::timeout)  // The watch looked for news until then.
      throw;
    throw Error(error.fault(),
                fmt::format("{}: {}", backend_.context(call_.outer), bare_text(error)));
  }
}

void HostsBackend::Crossing::deliver() {
  const bool is_whole = collective_.signature.operation != Operation::reduce ||
                        collective_.signature.root == engine_.rank();
  if (collective_.output.data != result_.data && is_whole)
    std::memcpy(result_.data, collective_.output.data, result_.bytes());
}

// --- Communicators of engines --------------------------------------------------------------------

void HostsBackend::make_engines() {
  const Collective making{.signature = {.operation = Operation::split}, .timeout = timeout_};
  const Call call(*this, making);
  if (map_.owns_slice() && map_.hosts() < call.ranks) slice_engine(call);
  engine_of_all(call);
}

EngineCommunicator& HostsBackend::slice_engine(const Call& call) {
  if (!slice_engine_)
    slice_engine_ = make_engine(call, map_.slice_ranks(map_.local_rank()), map_.host(),
                                fmt::format("slice {}", map_.local_rank()), {});
  return *slice_engine_;
}

EngineCommunicator& HostsBackend::engine_of_all(const Call& call) {
  if (!engine_of_all_) {
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    engine_of_all_ = make_engine(call, all, rank_, "all", here_);
  }
  return *engine_of_all_;
}

std::unique_ptr<EngineCommunicator> HostsBackend::make_engine(const Call& call,
                                                              const std::vector<int>& members,
                                                              int rank, const std::string& what,
                                                              Place local) {
  CommunicatorOptions options = context_->engine;
  options.rank = rank;
  options.world_ranks.clear();
  for (const int member : members)
    options.world_ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
  options.name = fmt::format("{}/{}", group_, what);
  options.local = local;
  options.timeout = until(call.deadline);
  // The waiting caller has its own deadline, and cancels the call.
  options.call_timeout = std::chrono::hours(24 * 365);
  try {
    return std::make_unique<EngineCommunicator>(std::move(options),
                                                [&] { throw_if_over(call.outer); });
  } catch (const Error& error) {
    if (error.fault() == Fault::system || error.fault() == Fault::timeout) throw_if_explained(call);
    throw;
  }
}

}  // namespace lockstep
