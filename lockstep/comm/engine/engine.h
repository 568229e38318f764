// Finds and opens an engine's plugin, at most once in a process. The engine "torch" is no plugin:
// Python programs register it (torch_backend/torch_engine.h).
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep {

struct Engine {
  std::string name;
  std::string path;     // The plugin's, or that of the library that registered it.
  std::string version;  // As the library underneath reports it.
  const lockstep_engine* abi = nullptr;

  bool serves(DeviceKind device) const {
    return (abi->devices >> static_cast<unsigned>(device) & 1) != 0;
  }
};

// The engines that are plugins, installed or not.
LOCKSTEP_API const std::vector<std::string_view>& engine_names();

// Errors: misuse for an unknown name. Unsupported when the plugin is missing, has another ABI,
// cannot be loaded or cannot run here, or "torch" is not registered. The message has the reason,
// usually with the package to install.
LOCKSTEP_API const Engine& open_engine(std::string_view name);

// Registers an engine that is no plugin. Does nothing if an engine of its name is open. Errors:
// unsupported when it has another ABI, or cannot run here.
LOCKSTEP_API void bring_engine(const lockstep_engine& engine);

// Calls open_engine(); returns its Error's text, or empty.
LOCKSTEP_API std::string why_no_engine(std::string_view name);

struct EngineFolder {
  std::filesystem::path path;
  bool from_user = false;  // LOCKSTEP_ENGINE_PATH.
};

// In order: LOCKSTEP_ENGINE_PATH (separated by ':'), this library's folder, and its
// lockstep-engines/.
std::vector<EngineFolder> engine_folders();

// Loads the plugin of the first folder that has one; if it is faulty, tries no other folder. It
// stays loaded, because the library underneath may have left threads or handlers behind. Errors:
// unsupported.
Engine load_engine(std::string_view name, const std::vector<EngineFolder>& folders);

}  // namespace lockstep
