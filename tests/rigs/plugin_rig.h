// Rig for tests of plugins: opens one by path, and creates its communicators with a file as the
// store.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/job/store/store.h"
#include "tests/ranks.h"
#include "tests/rigs/engine_call.h"

namespace lockstep::test {

// Returns the build's path of the plugin with that name; empty if it was not built.
std::filesystem::path plugin_path(const std::string& name);

// Errors: system when it cannot be opened.
const lockstep_engine& open_plugin(const std::string& name);

struct MemberOptions {
  int rank = 0;
  int size = 1;
  std::filesystem::path scratch;
  std::string name = "world";
  std::string address = "127.0.0.1";
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// A communicator. Every member throws the plugin's errors as an Error.
class Member {
 public:
  Member(const lockstep_engine& engine, const MemberOptions& options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const lockstep_engine& engine() const { return engine_; }

  void run(Operation operation, const EngineCall& call);

  void all_reduce(const lockstep_buffer& data, std::uint8_t op) {
    run(Operation::all_reduce, {.output = data, .reduce_op = op});
  }
  void broadcast(const lockstep_buffer& data, int root) {
    run(Operation::broadcast, {.output = data, .root = root});
  }
  void all_gather(const lockstep_buffer& input, const lockstep_buffer& output,
                  const std::vector<std::size_t>& counts) {
    run(Operation::all_gather, {.input = input, .output = output, .receive_counts = counts.data()});
  }
  void cancel() { engine_.cancel(communicator_); }

  // A barrier, made of all_gather.
  void meet();

 private:
  static int set(void* self, const char* key, const void* value, std::size_t bytes,
                 lockstep_engine_error* error);
  static int wait(void* self, const char* key, void* value, std::size_t capacity,
                  std::size_t* bytes, lockstep_engine_error* error);

  const lockstep_engine& engine_;
  const MemberOptions options_;
  FileStore store_;
  void* communicator_ = nullptr;
};

lockstep_buffer buffer_of(void* data, std::size_t count, DType dtype);

template <class T>
lockstep_buffer buffer_of(std::vector<T>& data) {
  return buffer_of(data.data(), data.size(), dtype_of<T>);
}

// This variable selects the plugin that a rank's body tests.
constexpr const char* engine_variable = "LOCKSTEP_TEST_ENGINE";
constexpr const char* engines_under_test[] = {"gloo", "oneccl"};

const lockstep_engine& engine_under_test();

MemberOptions member_of(const Rank& rank);

// Tests of each engine's plugin; skipped where it was not built.
class Plugins : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override;

  ScratchDirectory scratch_;
};

// Returns the local addresses at which this process listens, in the form of /proc/net/tcp and tcp6:
// "0100007F" is 127.0.0.1.
std::vector<std::string> listening_addresses();

}  // namespace lockstep::test
