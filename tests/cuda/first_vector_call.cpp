// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/first_vector_call.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace lockstep::test {
namespace {

using Choose = int();  // Chooses kernels in each call.

constexpr const char* symbol = "mkl_vml_serv_cpu_detect";

Choose* of_mkl() {
  static auto* const found = reinterpret_cast<Choose*>(::dlsym(RTLD_NEXT, symbol));
  return found;
}

std::mutex calls_mutex;
std::condition_variable changed;
bool is_armed = false;
std::chrono::milliseconds longest_call{0};
int calls = 0;
VectorCalls outcome = VectorCalls::none;

// The processor number that oneMKL briefly publishes to other threads instead of the number of its
// kernels; 9 is the highest. On AMD processors both are 0, so concurrent first calls do no harm.
constexpr int number_of_processor = 9;

// Returns the number for a call in place of oneMKL's answer; empty to use that answer.
std::optional<int> number_for_call() {
  std::unique_lock lock(calls_mutex);
  if (!is_armed) return std::nullopt;
  ++calls;
  changed.notify_all();
  if (calls > 1)
    return outcome == VectorCalls::none ? std::optional(number_of_processor) : std::nullopt;
  const bool met = changed.wait_for(lock, longest_call, [] { return calls > 1; });
  outcome = met ? VectorCalls::met : VectorCalls::alone;
  return std::nullopt;
}

}  // namespace

bool has_vector_calls() { return of_mkl() != nullptr; }

void hold_up_first_vector_call(std::chrono::milliseconds most) {
  const std::lock_guard lock(calls_mutex);
  is_armed = true;
  longest_call = most;
}

VectorCalls first_vector_call() {
  const std::lock_guard lock(calls_mutex);
  return outcome;
}

}  // namespace lockstep::test

extern "C" __attribute__((visibility("default"))) int mkl_vml_serv_cpu_detect() {
  const auto number = lockstep::test::number_for_call();
  return number ? *number : lockstep::test::of_mkl()();
}
