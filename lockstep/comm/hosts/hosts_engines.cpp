// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_engines.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/abort_reason.h"

namespace lockstep::comm {
namespace {

// Whether it is only the failure's effect, such as the end of a connection in Gloo.
bool may_be_explained(const Error& error) {
  return error.fault() == Fault::system || (error.fault() == Fault::peer_lost && !error.failure());
}

}  // namespace

EngineCall::EngineCall(KeptMemory& memory, const HostsCall& call, EngineCommunicator& engine,
                       const Collective& collective, std::size_t slot)
    : memory_(memory),
      call_(call),
      engine_(engine),
      collective_(collective),
      result_(collective.output),
      kept_(std::make_shared<std::vector<std::shared_ptr<const void>>>()) {
  if (engine_.can_cancel()) return;
  keep(collective_.input, staged_input + slot, true);
  keep(collective_.output, staged_output + slot,
       shape_of(collective_.signature.operation) == OperationShape::in_place);
}

EngineCall::~EngineCall() {
  if (is_under_way_) engine_.abort();
}

void EngineCall::keep(Buffer& buffer, std::size_t scratch, bool is_read) {
  if (buffer.bytes() == 0) return;
  std::shared_ptr<const void> owner = memory_.owner_of(buffer);
  if (!owner) {
    const Buffer copy = memory_.scratch(scratch, buffer);
    if (is_read) std::memcpy(copy.data, buffer.data, buffer.bytes());
    buffer = copy;
    owner = memory_.owner_of(buffer);
  }
  kept_->push_back(std::move(owner));
}

void EngineCall::start() {
  engine_.start(collective_, kept_);
  is_under_way_ = true;
}

void EngineCall::wait() {
  try {
    is_under_way_ = false;  // wait() aborts a failed call itself.
    engine_.wait(call_.deadline, [&] { call_.group.throw_if_over(call_.outer); });
  } catch (const GroupAborted&) {
    throw;
  } catch (const Error& error) {
    if (may_be_explained(error))
      call_.group.throw_if_explained(call_.outer);
    else if (error.fault() != Fault::timeout)  // The watch has checked for failures until then.
      throw;
    throw Error(error.fault(),
                fmt::format("{}: {}", call_.group.describe(call_.outer), bare_text(error)));
  }
}

void EngineCall::deliver() {
  const bool is_whole = collective_.signature.operation != Operation::reduce ||
                        collective_.signature.root == engine_.rank();
  if (collective_.output.data != result_.data && is_whole)
    std::memcpy(result_.data, collective_.output.data, result_.bytes());
}

HostsEngines::HostsEngines(const HostsGroup& group, std::chrono::milliseconds timeout,
                           std::function<void()> watch)
    : group_(group), watch_(std::move(watch)) {
  const lockstep_engine& abi = *group.context()->engine.engine->abi;
  if ((abi.flags & LOCKSTEP_ENGINE_ORDERED) != 0) make_all(timeout);
  watch_ = nullptr;
}

HostsEngines::~HostsEngines() {
  try {
    group_.local()->throw_if_over("ending group " + group_.name());
  } catch (const Error&) {
    for (EngineCommunicator* engine : {of_slice_.get(), of_all_.get()})
      if (engine != nullptr) engine->expect_no_peers();
  }
}

void HostsEngines::make_all(std::chrono::milliseconds timeout) {
  const Collective making{.signature = {.operation = Operation::split}, .timeout = timeout};
  const HostsCall call(group_, making);
  if (group_.map().owns_slice() && group_.map().hosts() < group_.size()) of_slice(call);
  of_all(call);
}

EngineCommunicator& HostsEngines::of_slice(const HostsCall& call) {
  const HostMap& map = group_.map();
  if (!of_slice_)
    of_slice_ = make(call, map.slice_ranks(map.local_rank()), map.host(),
                     fmt::format("slice {}", map.local_rank()), {});
  return *of_slice_;
}

EngineCommunicator& HostsEngines::of_all(const HostsCall& call) {
  if (!of_all_) {
    std::vector<int> all(static_cast<std::size_t>(group_.size()));
    std::iota(all.begin(), all.end(), 0);
    of_all_ = make(call, all, group_.rank(), "all", group_.place());
  }
  return *of_all_;
}

std::unique_ptr<EngineCommunicator> HostsEngines::make(const HostsCall& call,
                                                       const std::vector<int>& members, int rank,
                                                       const std::string& what,
                                                       Backend::Place local) {
  CommunicatorOptions options = group_.context()->engine;
  options.rank = rank;
  options.world_ranks = group_.in_the_job(members);
  options.name = fmt::format("{}/{}", group_.name(), what);
  options.local = local;
  options.timeout = until(call.deadline);
  // The caller has its own deadline, and cancels the call.
  options.call_timeout = std::chrono::hours(24 * 365);
  const auto watch = [&] {
    if (watch_) watch_();  // First: it may have a better reason for a missing rank.
    group_.throw_if_over(call.outer);
  };
  try {
    return std::make_unique<EngineCommunicator>(std::move(options), watch);
  } catch (const GroupAborted&) {
    throw;
  } catch (const Error& error) {
    if (may_be_explained(error) || error.fault() == Fault::timeout)
      group_.throw_if_explained(call.outer);
    throw;
  }
}

}  // namespace lockstep::comm
