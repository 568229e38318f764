// Opens the library built against Gloo, so that it uses no other Gloo. LibTorch exports another
// version's gloo::, to which the loader would bind the plugin.

// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <string>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

bool is_another_gloo_here() {
  return dlsym(RTLD_DEFAULT, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE") != nullptr;
}

// The library beside this file.
std::string path_of_gloo() {
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(&lockstep_engine_v1), &self) == 0) return {};
  const std::string path = self.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "liblockstep-gloo.so";
}

std::string why_not_opened;

int refuse(char*, std::size_t, lockstep_engine_error* error) {
  return plugin::fail(error, Fault::unsupported, why_not_opened);
}

const lockstep_engine* refuse_with(std::string why) {
  why_not_opened = std::move(why);
  static lockstep_engine refusing = {};
  refusing.struct_bytes = sizeof refusing;
  refusing.abi = LOCKSTEP_ENGINE_ABI;
  refusing.name = "gloo";
  refusing.devices = 1;  // CPU.
  refusing.probe = refuse;
  return &refusing;
}

const lockstep_engine* open_gloo() {
  int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (is_another_gloo_here()) {
    if (is_sanitized) {
      return refuse_with("Gloo cannot be opened beside LibTorch's in a program with a sanitizer");
    }
    flags |= RTLD_DEEPBIND;
  }
  void* opened = dlopen(path_of_gloo().c_str(), flags);
  if (opened == nullptr) return refuse_with(dlerror());
  const auto get =
      reinterpret_cast<lockstep_engine_v1_function>(dlsym(opened, "lockstep_engine_v1"));
  if (get == nullptr) return refuse_with(dlerror());
  return get();
}

}  // namespace
}  // namespace lockstep::comm::engines

const lockstep_engine* lockstep_engine_v1() {
  static const lockstep_engine* const engine = lockstep::comm::engines::open_gloo();
  return engine;
}
