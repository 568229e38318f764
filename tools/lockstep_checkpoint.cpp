// `lockstep checkpoint`: loads the plugin that needs LibTorch. Without it, prints advice.

// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>

#include "tools/checkpoint/command_line.h"
#include "tools/libtorch_remedy.h"

namespace {

constexpr int wrong_setup = 78;  // EX_CONFIG of sysexits.h

int complain() {
  std::fprintf(
      stderr, "lockstep checkpoint: %s: %s; lockstep doctor shows which LibTorch it finds\n",
      ::dlerror(),
      lockstep::tools::libtorch_remedy(LOCKSTEP_TORCH_VERSION, LOCKSTEP_TORCH_PLACE).c_str());
  return wrong_setup;
}

}  // namespace

int main(int argc, char** argv) {
  void* const plugin = ::dlopen(LOCKSTEP_CHECKPOINT_PLUGIN, RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) return complain();
  void* const command = ::dlsym(plugin, "lockstep_checkpoint_command");
  if (command == nullptr) return complain();
  return reinterpret_cast<decltype(&lockstep_checkpoint_command)>(command)(argc, argv);
}
