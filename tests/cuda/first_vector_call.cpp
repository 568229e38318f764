// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/first_vector_call.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep::test {
namespace {

using Choose = int();  // Of kernels, in each call.

constexpr const char* symbol = "mkl_vml_serv_cpu_detect";

Choose* of_mkl() {
  static auto* const found = reinterpret_cast<Choose*>(::dlsym(RTLD_NEXT, symbol));
  return found;
}

std::mutex mutex;
std::condition_variable changed;
bool is_armed = false;
int calls = 0;
VectorCalls outcome = VectorCalls::none;

void note_first_call() {
  constexpr std::chrono::milliseconds most{300};
  std::unique_lock lock(mutex);
  if (!is_armed) return;
  ++calls;
  changed.notify_all();
  if (calls > 1) return;
  const bool met = changed.wait_for(lock, most, [] { return calls > 1; });
  outcome = met ? VectorCalls::met : VectorCalls::alone;
}

}  // namespace

bool has_vector_calls() { return of_mkl() != nullptr; }

void hold_up_first_vector_call() {
  const std::lock_guard lock(mutex);
  is_armed = true;
}

VectorCalls first_vector_call() {
  const std::lock_guard lock(mutex);
  return outcome;
}

}  // namespace lockstep::test

extern "C" __attribute__((visibility("default"))) int mkl_vml_serv_cpu_detect() {
  lockstep::test::note_first_call();
  return lockstep::test::of_mkl()();
}
