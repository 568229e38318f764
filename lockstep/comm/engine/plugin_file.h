// One attempt to find, load and probe an engine's plugin; engine.h keeps what came of it.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/comm/engine/engine.h"

namespace lockstep {

struct EngineFolder {
  std::filesystem::path path;
  bool from_user = false;  // Of LOCKSTEP_ENGINE_PATH.
};

// Where plugins are looked for, in that order. Empty parts of the variable are passed over.
std::vector<EngineFolder> engine_folders();

// The plugin of the first folder that has it decides: what is wrong with that one is not covered up
// by another. It stays loaded in any case, because the library underneath may have left threads or
// handlers behind. Errors: unsupported.
Engine load_engine(std::string_view name, const std::vector<EngineFolder>& folders);

}  // namespace lockstep
