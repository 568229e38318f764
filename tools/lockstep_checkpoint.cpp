// `lockstep checkpoint`: opens the plugin that does the work and needs LibTorch. If LibTorch is
// missing, the message can name the remedy, not only a library.

// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>

#include "tools/checkpoint/command_line.h"

namespace {

constexpr int wrong_setup = 78;  // EX_CONFIG of sysexits.h

int complain() {
  std::fprintf(stderr,
               "lockstep checkpoint: %s: name the folder of LibTorch " LOCKSTEP_TORCH_VERSION
               "'s libraries in LD_LIBRARY_PATH; lockstep doctor says which it finds\n",
               ::dlerror());
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
