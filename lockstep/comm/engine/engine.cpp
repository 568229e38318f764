// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/plugin_file.h"

namespace lockstep {

const std::vector<std::string_view>& engine_names() {
  static const std::vector<std::string_view> names{"mpi", "gloo", "oneccl", "nccl"};
  return names;
}

const Engine& open_engine(std::string_view name) {
  const auto& names = engine_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), [&] {
    return fmt::format("there is no engine '{}': the engines are {}", name, fmt::join(names, ", "));
  });
  static std::mutex mutex;
  // Never destroyed: threads may still run in an engine when the process ends.
  static auto& opened = *new std::map<std::string, Engine, std::less<>>;
  const std::lock_guard lock(mutex);
  if (const auto found = opened.find(name); found != opened.end()) return found->second;
  Engine engine = load_engine(name, engine_folders());
  return opened.emplace(name, std::move(engine)).first->second;
}

std::string why_no_engine(std::string_view name) try {
  open_engine(name);
  return {};
} catch (const std::exception& error) {
  return error.what();
} catch (...) {
  return fmt::format("engine {}: an exception of an unknown type", name);
}

}  // namespace lockstep
