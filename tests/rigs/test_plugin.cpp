// A plugin for tests of the search for plugins, and of their rejection. CMakeLists.txt names the
// fault of each variant. Its collectives fail.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin.h"

#ifndef ABI
#define ABI LOCKSTEP_ENGINE_ABI
#endif
#ifndef MISSING_BYTES
#define MISSING_BYTES 0
#endif
#ifndef NAME
#define NAME ENGINE_NAME
#endif
#ifndef LIBRARY_VERSION
#define LIBRARY_VERSION "1.0 of a test"
#endif

namespace {

using lockstep::Fault;
using lockstep::plugin::fail;

int probe(char* text, size_t capacity, lockstep_engine_error* error) {
#ifdef PROBE_ERROR
  text[0] = '\0';
  return fail(error, Fault::unsupported, capacity > 0 ? PROBE_ERROR : "");
#else
  if (capacity == 0) return fail(error, Fault::misuse, "there is no room for the version");
  lockstep::plugin::copy_text(text, capacity, LIBRARY_VERSION);
  return 0;
#endif
}

int supports(uint8_t, uint8_t, uint8_t) { return 0; }

int create(const lockstep_engine_config*, void**, lockstep_engine_error* error) {
  return fail(error, Fault::unsupported, "this is a test's plugin");
}

#ifndef WITHOUT_RUN
int run(void*, const lockstep_collective*, lockstep_engine_error* error) {
  return fail(error, Fault::unsupported, "this is a test's plugin");
}
#endif

const lockstep_engine engine = {
    .struct_bytes = sizeof(lockstep_engine) - MISSING_BYTES,
    .abi = ABI,
    .name = NAME,
    .devices = 1,
    .flags = 0,
    .probe = probe,
    .identify = nullptr,
    .tell_all = nullptr,
    .supports = supports,
    .create = create,
    .destroy = [](void*) {},
    .cancel = nullptr,
#ifdef WITHOUT_RUN
    .run = nullptr,
#else
    .run = run,
#endif
};

}  // namespace

#ifdef WITHOUT_SYMBOL
extern "C" __attribute__((visibility("default"))) const lockstep_engine* another_symbol() {
  return &engine;
}
#else
extern "C" const lockstep_engine* lockstep_engine_v1() { return &engine; }
#endif
