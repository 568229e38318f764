// The plugin is a table of functions in this file.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin_communicator.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/engine/plugin.h"
#include "tests/fault_of.h"

namespace lockstep::comm::plugin_communicator_test {
namespace {

using test::fault_of;

std::vector<std::string> calls;
bool is_failing = false;

int note(std::string text, lockstep_engine_error* error) {
  calls.push_back(std::move(text));
  return is_failing ? plugin::fail(error, Fault::timeout, "too late") : 0;
}

std::string text_of(const lockstep_buffer* buffer) {
  return std::to_string(buffer->count) + " of type " + std::to_string(buffer->dtype) +
         " on device " + std::to_string(buffer->device) + '.' +
         std::to_string(buffer->device_index) + " stream " +
         std::to_string(reinterpret_cast<std::uintptr_t>(buffer->stream));
}

std::string text_of(const std::size_t* counts) {
  return counts == nullptr ? "none" : std::to_string(counts[0]) + '+' + std::to_string(counts[1]);
}

int create(const lockstep_engine_config* config, void** communicator,
           lockstep_engine_error* error) {
  *communicator = &calls;
  return note(std::string("create ") + config->name, error);
}

int run(void* communicator, const lockstep_collective* call, lockstep_engine_error* error) {
  EXPECT_EQ(communicator, &calls);
  EXPECT_EQ(call->struct_bytes, sizeof *call);
  return note(std::string(name(static_cast<Operation>(call->operation))) + " of " +
                  std::to_string(call->input.count) + " into " + text_of(&call->output) + ", op " +
                  std::to_string(call->reduce_op) + ", root " + std::to_string(call->root) +
                  ", parts " + text_of(call->send_counts) + " and " + text_of(call->receive_counts),
              error);
}

constexpr lockstep_engine fake = {
    .struct_bytes = sizeof(lockstep_engine),
    .abi = LOCKSTEP_ENGINE_ABI,
    .name = "fake",
    .devices = 2,
    .flags = 0,
    .probe = nullptr,
    .identify = nullptr,
    .tell_all = nullptr,
    .supports = nullptr,
    .create = create,
    .destroy = [](void*) { calls.emplace_back("destroy"); },
    .cancel = [](void*) { calls.emplace_back("cancel"); },
    .run = run,
};

class PluginCommunicators : public testing::Test {
 protected:
  PluginCommunicators() {
    calls.clear();
    is_failing = false;
    config_.name = "pair";
    config_.rank = 1;
    config_.size = 2;
  }

  lockstep_engine_config config_{};
};

TEST_F(PluginCommunicators, TakesEveryCallAcross) {
  char memory[64];
  Buffer four{.data = memory, .count = 4, .dtype = DType::bfloat16, .device = DeviceKind::cuda};
  four.device_index = 5;
  four.stream = reinterpret_cast<void*>(7);
  {
    PluginCommunicator communicator(fake, config_);
    communicator.run(
        {.signature = {.operation = Operation::all_reduce, .op = ReduceOp::max}, .output = four});
    communicator.run(
        {.signature = {.root = 1, .operation = Operation::reduce, .op = ReduceOp::product},
         .output = four});
    communicator.cancel();
  }
  const std::string of_four = "4 of type 3 on device 1.5 stream 7";
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "create pair",
                       "all_reduce of 0 into " + of_four + ", op 4, root 0, parts none and none",
                       "reduce of 0 into " + of_four + ", op 2, root 1, parts none and none",
                       "cancel", "destroy"}));
}

TEST_F(PluginCommunicators, PassesTheCountsOfTheBuffersThatHaveParts) {
  const std::vector<std::size_t> counts = {1, 3};
  const std::vector<std::size_t> pairs = {5, 6, 7, 8};  // From rank 0, then from rank 1.
  PluginCommunicator communicator(fake, config_);
  const auto parts_of = [&](Operation operation, std::span<const std::size_t> given) {
    communicator.run(
        {.signature = {.count = 4, .operation = operation}, .input = {}, .counts = given});
    const std::string& line = calls.back();
    return line.substr(line.find("parts ") + 6);
  };
  EXPECT_EQ(parts_of(Operation::all_gather, counts), "none and 1+3");
  EXPECT_EQ(parts_of(Operation::all_gather, {}), "none and 4+4");
  EXPECT_EQ(parts_of(Operation::reduce_scatter, counts), "1+3 and none");
  EXPECT_EQ(parts_of(Operation::all_to_all, pairs), "7+8 and 6+8");
  EXPECT_EQ(parts_of(Operation::all_to_all, {}), "4+4 and 4+4");
  EXPECT_EQ(parts_of(Operation::broadcast, {}), "none and none");
}

TEST_F(PluginCommunicators, ThrowsTheErrorReportedByThePlugin) {
  PluginCommunicator communicator(fake, config_);
  is_failing = true;
  std::string text;
  EXPECT_EQ(fault_of([&] { communicator.run({}); }, &text), Fault::timeout);
  EXPECT_NE(text.find("fake: too late"), std::string::npos) << text;
}

TEST_F(PluginCommunicators, DestroysNothingThatWasNotMade) {
  is_failing = true;
  EXPECT_EQ(fault_of([&] { PluginCommunicator(fake, config_); }), Fault::timeout);
  EXPECT_EQ(calls, std::vector<std::string>{"create pair"});
}

}  // namespace
}  // namespace lockstep::comm::plugin_communicator_test
