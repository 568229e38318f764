// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/crossing.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "lockstep/base/text.h"
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

}  // namespace lockstep
