// An engine's plugin, found and opened.
//
// Looked for, in this order: in the folders of LOCKSTEP_ENGINE_PATH (separated by ':'), and in the
// folder of this library and its lockstep-engines/. Opened at most once, for the life of the
// process.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep {

struct Engine {
  std::string name;
  std::string path;     // Of the plugin.
  std::string version;  // Of the library underneath, as it says it.
  const lockstep_engine* abi = nullptr;

  bool serves(DeviceKind device) const {
    return (abi->devices >> static_cast<unsigned>(device) & 1) != 0;
  }
};

// mpi, gloo, oneccl, nccl.
LOCKSTEP_API const std::vector<std::string_view>& engine_names();

// Errors: misuse for a name that is none of these; unsupported when its plugin is not there, is of
// another ABI, cannot be loaded or cannot run here: what was looked for, where, the loader's words,
// and which package brings it.
LOCKSTEP_API const Engine& open_engine(std::string_view name);

// The same as a question: why open_engine() would throw; empty when it would not.
LOCKSTEP_API std::string why_no_engine(std::string_view name);

}  // namespace lockstep
