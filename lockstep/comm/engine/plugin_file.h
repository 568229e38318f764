// Finds, loads and probes an engine's plugin once; engine.h caches the result.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/comm/engine/engine.h"

namespace lockstep {

struct EngineFolder {
  std::filesystem::path path;
  bool from_user = false;  // From LOCKSTEP_ENGINE_PATH.
};

// Returns the folders to search, in order. Ignores empty parts of the variable.
std::vector<EngineFolder> engine_folders();

// Loads the plugin of the first folder that has it; a faulty one is an error even if another folder
// has one too. It stays loaded in any case, because the library underneath may have left threads or
// handlers behind. Errors: unsupported.
Engine load_engine(std::string_view name, const std::vector<EngineFolder>& folders);

}  // namespace lockstep
