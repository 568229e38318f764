// A rank whose rendezvous is PyTorch's store, and one that tests this store as a Store.

// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/store/foreign_store.h"
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

lockstep::Deadline soon() { return lockstep::in(std::chrono::seconds(60)); }

// Connects to the store as a rank on several hosts does, from torchrun's variables alone.
void expect_torchruns_store(const lockstep::LaunchEnvironment& who) {
  const auto connect = [&](const char* prefix) {
    return lockstep::connect_foreign_store(who.master, prefix, soon());
  };
  const auto store = connect("test/");
  std::thread setting([&] {  // A wait on the same connection does not delay it.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    store->set("rank" + std::to_string(who.rank), "here");
  });
  for (int rank = 0; rank < who.world_size; ++rank)
    check(store->wait("rank" + std::to_string(rank), soon()) == "here", "a rank did not come");
  setting.join();
  check(!connect("other/")->find("rank0"), "a prefix did not keep keys apart");
}

void expect_a_timeout_where_nobody_listens() {
  const auto start = lockstep::Clock::now();
  try {
    lockstep::connect_foreign_store("127.0.0.1:1", "", lockstep::in(std::chrono::seconds(2)));
    check(false, "connected to nobody");
  } catch (const lockstep::Error& error) {
    check(error.fault() == lockstep::Fault::timeout, error.what());
  }
  check(lockstep::seconds_since(start) < 10, "a deadline of 2 s was not kept");
}

}  // namespace

int main() try {
  expect_a_store(*lockstep::adapt(c10::make_intrusive<c10d::HashStore>()));
  if (const auto who = lockstep::read_environment(); who.master_is_taken) {
    expect_torchruns_store(who);
    if (who.rank == 0) expect_a_timeout_where_nobody_listens();
  }
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
