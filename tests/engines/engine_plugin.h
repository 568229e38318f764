// Opens a plugin and its communicators without the core.
//
// Errors: std::runtime_error.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::test {

// Returns the engine in the plugin `path`, which stays open.
const lockstep_engine& open_plugin(const char* path);

// Checks the `result` of an ABI function: throws with `what` and the error's text unless it is 0.
void expect_success(int result, const std::string& what, const lockstep_engine_error& error);

struct World {
  int rank;
  int size;
  const void* handle;  // For tell_all() and create().
};

// Errors: also if the engine cannot identify this process.
World identify(const lockstep_engine& engine, const void* handed_over);

// Returns 0 to size - 1.
std::vector<std::int32_t> all_ranks(int size);

// A communicator of some ranks of the world, including this one, in the order of `world_ranks`.
class Communicator {
 public:
  Communicator(const lockstep_engine& engine, const World& world, const std::string& name,
               const std::vector<std::int32_t>& world_ranks);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const lockstep_engine& engine() const { return engine_; }
  void* handle() const { return handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const lockstep_engine& engine_;
  void* handle_ = nullptr;
  int rank_;
  int size_;
};

}  // namespace lockstep::test
