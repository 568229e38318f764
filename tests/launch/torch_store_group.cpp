// A rank that finds the others through PyTorch's store, and one that shows the store to be a Store.

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/comm/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/torch_store.h"

namespace {

using lockstep::check;

void expect_a_store(lockstep::Store& store) {
  check(!store.find("absent"), "an absent key was found");
  store.set("key", std::string("a\0b", 3));
  check(store.find("key") == std::string("a\0b", 3), "find");
  check(store.wait("key", lockstep::Deadline()) == std::string("a\0b", 3), "wait");
  check(store.add("number", 40) == 40 && store.add("number", 2) == 42, "add");
  check(store.compare_set("key", "other", "new") == std::string("a\0b", 3),
        "compare_set of another");
  check(store.compare_set("key", std::string("a\0b", 3), "new") == "new", "compare_set");
  check(store.erase("key") && !store.erase("key"), "erase");
  try {
    store.wait("never", lockstep::in(std::chrono::milliseconds(200)));
    check(false, "a wait for nothing ended");
  } catch (const lockstep::Error& error) {
    check(error.fault() == lockstep::Fault::timeout, error.what());
    check(std::string_view(error.what()).find("never") != std::string_view::npos, error.what());
  }
}

}  // namespace

int main() try {
  expect_a_store(*lockstep::adapt(c10::make_intrusive<c10d::HashStore>()));
  const auto store = lockstep::connect_torch_store();
  for (int round = 0; round < 2; ++round) {
    auto world = lockstep::init_process_group({.store = store});
    std::int64_t sum = world.rank();
    world.all_reduce({.data = &sum, .count = 1, .dtype = lockstep::DType::int64});
    check(sum == world.size() * (world.size() - 1) / 2, "a wrong sum");
    lockstep::destroy_process_group(world);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
