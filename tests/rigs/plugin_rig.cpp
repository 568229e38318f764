// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/plugin_rig.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::test {
namespace {

void throw_if(int failed, const lockstep_engine_error& error) {
  if (failed != 0) throw Error(static_cast<Fault>(error.fault), error.text);
}

// Implements the core's callbacks: an exception of the store becomes `error`.
template <class Act>
int guarded_store(lockstep_engine_error* error, Act act) {
  try {
    act();
    return 0;
  } catch (const Error& thrown) {
    return plugin::fail(error, thrown.fault(), thrown.what());
  }
}

}  // namespace

std::filesystem::path plugin_path(const std::string& name) {
  std::filesystem::path path =
      std::filesystem::path(LOCKSTEP_PLUGINS) / ("liblockstep-engine-" + name + ".so");
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

const lockstep_engine& open_plugin(const std::string& name) {
  void* opened = dlopen(plugin_path(name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) throw Error(Fault::system, dlerror());
  const auto get =
      reinterpret_cast<lockstep_engine_v1_function>(dlsym(opened, "lockstep_engine_v1"));
  if (get == nullptr) throw Error(Fault::system, dlerror());
  return *get();
}

Member::Member(const lockstep_engine& engine, const MemberOptions& options)
    : engine_(engine), options_(options), store_({.path = options.scratch / "store"}) {
  std::vector<std::int32_t> world_ranks(static_cast<std::size_t>(options.size));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  lockstep_engine_config config = {};
  config.struct_bytes = sizeof config;
  config.rank = options.rank;
  config.size = options.size;
  config.world_ranks = world_ranks.data();
  config.world_size = options.size;
  config.name = options.name.c_str();
  config.local_rank = 0;
  config.local_size = 1;
  config.interface_name = "lo";
  config.address = options.address.c_str();
  config.device_index = -1;
  config.timeout_ms = options.timeout.count();
  config.call_timeout_ms = options.timeout.count();
  config.store = {this, set, wait};
  lockstep_engine_error error = {};
  throw_if(engine.create(&config, &communicator_, &error), error);
}

Member::~Member() { engine_.destroy(communicator_); }

int Member::set(void* self, const char* key, const void* value, std::size_t bytes,
                lockstep_engine_error* error) {
  auto& member = *static_cast<Member*>(self);
  return guarded_store(error, [&] {
    member.store_.set(member.options_.name + "/" + key, {static_cast<const char*>(value), bytes});
  });
}

int Member::wait(void* self, const char* key, void* value, std::size_t capacity, std::size_t* bytes,
                 lockstep_engine_error* error) {
  auto& member = *static_cast<Member*>(self);
  return guarded_store(error, [&] {
    const std::string found =
        member.store_.wait(member.options_.name + "/" + key, in(member.options_.timeout));
    *bytes = found.size();
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
  });
}

void Member::run(Operation operation, const EngineCall& call) {
  lockstep_engine_error error = {};
  throw_if(test::run(engine_, communicator_, operation, call, &error), error);
}

void Member::meet() {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(size()), 1);
  std::vector<std::uint8_t> mine(1), all(counts.size());
  all_gather(buffer_of(mine), buffer_of(all), counts);
}

lockstep_buffer buffer_of(void* data, std::size_t count, DType dtype) {
  lockstep_buffer buffer = {};
  buffer.data = data;
  buffer.count = count;
  buffer.dtype = static_cast<std::uint8_t>(dtype);
  return buffer;
}

const lockstep_engine& engine_under_test() { return open_plugin(std::getenv(engine_variable)); }

MemberOptions member_of(const Rank& rank) {
  return {.rank = rank.rank, .size = rank.world_size, .scratch = rank.scratch};
}

void Plugins::SetUp() {
  if (plugin_path(GetParam()).empty()) {
    GTEST_SKIP() << "the engine " << GetParam() << " was not built: its library is not here";
  }
  setenv(engine_variable, GetParam(), 1);
}

std::vector<std::string> listening_addresses() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_since;
    const std::string target = std::filesystem::read_symlink(entry.path(), closed_since);
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      constexpr const char* listen = "0A";
      if (state == listen && own.contains(inode)) {
        addresses.push_back(local.substr(0, local.find(':')));
      }
    }
  }
  return addresses;
}

}  // namespace lockstep::test
