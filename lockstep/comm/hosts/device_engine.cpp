// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/device_engine.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/engine/plugin_communicator.h"
#include "lockstep/comm/hosts/job_store.h"

namespace lockstep::comm {
namespace {

struct OfferedStore {
  std::unique_ptr<ServedStore> served;
  std::shared_ptr<const void> offered;
};

// The port of rank 0's store, a space, and its token. Core dumps contain this memory and every copy
// of the text, so both are short-lived.
SharedMapping write_down(const std::string& key, int port, const JobToken& token) {
  const std::string number = fmt::format("{} ", port);
  auto memory = SharedMapping::create(key, number.size() + token.text().size() + 1);
  char* const text = reinterpret_cast<char*>(memory.data());
  token.text().copy(text + number.copy(text, number.size()), token.text().size());
  return memory;
}

// Reads the token; returns the port.
int read_up(const SharedMapping& memory, const std::string& key, std::optional<JobToken>& token) {
  const char* text = reinterpret_cast<const char*>(memory.data());
  const std::string_view said(text, ::strnlen(text, memory.bytes()));
  const auto space = said.find(' ');
  const auto number = said.substr(0, space);
  int port = 0;
  const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), port);
  if (space == said.npos || problem != std::errc() || end != number.data() + number.size())
    throw Error(Fault::corrupt, key + ": not a port and a token");
  token.emplace(said.substr(space + 1));
  return port;
}

}  // namespace

std::string store_key(const DeviceMembers& members) {
  return fmt::format("store of group {:016x} {:016x}", hash_of_elements(members.name),
                     hash_of_elements(members.world_ranks));
}

std::shared_ptr<Store> open_device_store(HostSession& session, const DeviceMembers& members,
                                         Deadline deadline) {
  const std::string key = store_key(members);
  const int size = static_cast<int>(members.world_ranks.size());
  TcpStoreOptions options{.member = {.job_id = "device", .rank = members.rank, .world_size = size},
                          .connect_timeout = until(deadline),
                          .timeout = until(deadline)};
  if (members.rank == 0) {
    options.token = make_job_token();
    auto served = std::make_unique<ServedStore>(options);
    const auto memory = write_down(key, served->server.port(), *options.token);
    // Making the communicator needs the store, so the others have fetched it by then.
    auto offered = size > 1 ? session.hand_out(key, memory.descriptor()) : nullptr;
    const auto owner = std::make_shared<OfferedStore>(std::move(served), std::move(offered));
    return {owner, &owner->served->store};
  }
  FileDescriptor offered = session.fetch(members.world_ranks.front(), key, deadline, [&] {
    session.throw_if_peer_lost("making a communicator for CUDA");
  });
  if (!offered)
    throw Error(Fault::timeout,
                "making a communicator for CUDA: rank 0 of the group has not opened its store",
                {0});
  options.port = read_up(SharedMapping::attach(std::move(offered)), key, options.token);
  return std::make_shared<TcpStore>(options);
}

std::shared_ptr<const DeviceEngine> make_device_engine(const DeviceEngineOptions& options) {
  DeviceEngine engine;
  engine.why_not = [] { return why_no_engine("nccl"); };
  engine.supports = [](Operation operation, DType dtype, ReduceOp op) {
    static const lockstep_engine& nccl = *open_engine("nccl").abi;
    return nccl.supports(static_cast<std::uint8_t>(operation), static_cast<std::uint8_t>(dtype),
                         static_cast<std::uint8_t>(op)) != 0;
  };
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
    if (!made.store) made.store = open_device_store(*options.session, members, deadline);
    return make_communicator(made);
  };
  return std::make_shared<const DeviceEngine>(std::move(engine));
}

}  // namespace lockstep::comm
