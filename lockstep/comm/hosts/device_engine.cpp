// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/device_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/engine/plugin_communicator.h"
#include "lockstep/comm/hosts/job_store.h"

namespace lockstep::comm {
namespace {

// Opens a store for ranks of one host: the first rank opens it on loopback. Its port and token go
// through the switchboard, which only they can reach.
std::shared_ptr<Store> open_store(HostSession& session, const DeviceMembers& members,
                                  Deadline deadline) {
  const std::string key = "store of group " + members.name;
  const int size = static_cast<int>(members.world_ranks.size());
  TcpStoreOptions options{.member = {.job_id = "device", .rank = members.rank, .world_size = size},
                          .connect_timeout = until(deadline),
                          .timeout = until(deadline)};
  if (members.rank == 0) {
    options.token = make_job_token();
    auto served = std::make_shared<ServedStore>(options);
    const std::string text = fmt::format("{} {}", served->server.port(), options.token->text());
    const auto memory = SharedMapping::create(key, text.size() + 1);
    std::memcpy(memory.data(), text.data(), text.size());
    if (size > 1) session.link().offer(key, size - 1, memory.descriptor());
    return {served, &served->store};
  }
  const auto memory = SharedMapping::attach(session.link().obtain(
      key, deadline, [&] { session.throw_if_peer_lost("making a communicator for CUDA"); }));
  const char* text = reinterpret_cast<const char*>(memory.data());
  const std::string said(text, ::strnlen(text, memory.bytes()));
  const auto space = said.find(' ');
  const auto number = said.substr(0, space);
  const auto [end, problem] =
      std::from_chars(number.data(), number.data() + number.size(), options.port);
  if (space == said.npos || problem != std::errc() || end != number.data() + number.size())
    throw Error(Fault::corrupt, key + ": not a port and a token");
  options.token = JobToken(said.substr(space + 1));
  return std::make_shared<TcpStore>(options);
}

}  // namespace

std::shared_ptr<const DeviceEngine> make_device_engine(const DeviceEngineOptions& options) {
  DeviceEngine engine;
  engine.why_not = [] { return why_no_engine("nccl"); };
  engine.make = [options](const DeviceMembers& members, int device_index, Deadline deadline) {
    CommunicatorOptions made{.engine = &open_engine("nccl"),
                             .rank = members.rank,
                             .world_ranks = members.world_ranks,
                             .world_size = options.world_size,
                             .name = members.name + "/cuda",
                             .interface = options.interface,
                             .device_index = device_index,
                             .store = options.store,
                             .keys = options.keys,
                             .timeout = until(deadline),
                             .call_timeout = until(deadline)};
    if (!made.store) made.store = open_store(*options.session, members, deadline);
    return make_communicator(made);
  };
  return std::make_shared<const DeviceEngine>(std::move(engine));
}

}  // namespace lockstep::comm
