// Tests the C ABI: the arguments that a plugin gets, and the handling of its results. The plugin is
// a table of functions in this file.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin_communicator.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/comm/engine/plugin.h"
#include "tests/fault_of.h"

namespace lockstep::comm::plugin_communicator_test {
namespace {

using test::fault_of;

// The calls of the plugin, one line each.
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
  return std::to_string(counts[0]) + '+' + std::to_string(counts[1]);
}

int create(const lockstep_engine_config* config, void** communicator,
           lockstep_engine_error* error) {
  *communicator = &calls;
  return note(std::string("create ") + config->name, error);
}

int all_reduce(void* communicator, const lockstep_buffer* data, std::uint8_t op,
               lockstep_engine_error* error) {
  EXPECT_EQ(communicator, &calls);
  return note("all_reduce " + text_of(data) + " op " + std::to_string(op), error);
}

int broadcast(void*, const lockstep_buffer* data, std::int32_t root, lockstep_engine_error* error) {
  return note("broadcast " + text_of(data) + " root " + std::to_string(root), error);
}

int reduce(void*, const lockstep_buffer* data, std::int32_t root, std::uint8_t op,
           lockstep_engine_error* error) {
  return note(
      "reduce " + text_of(data) + " root " + std::to_string(root) + " op " + std::to_string(op),
      error);
}

int all_gather(void*, const lockstep_buffer* input, const lockstep_buffer* output,
               const std::size_t* counts, lockstep_engine_error* error) {
  return note("all_gather " + std::to_string(input->count) + " into " +
                  std::to_string(output->count) + ": " + text_of(counts),
              error);
}

int reduce_scatter(void*, const lockstep_buffer* input, const lockstep_buffer* output,
                   const std::size_t* counts, std::uint8_t op, lockstep_engine_error* error) {
  return note("reduce_scatter " + std::to_string(input->count) + " into " +
                  std::to_string(output->count) + ": " + text_of(counts) + " op " +
                  std::to_string(op),
              error);
}

int all_to_all(void*, const lockstep_buffer*, const lockstep_buffer*, const std::size_t* sent,
               const std::size_t* received, lockstep_engine_error* error) {
  return note("all_to_all " + text_of(sent) + " for " + text_of(received), error);
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
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .reduce = reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
};

class PluginCommunicators : public testing::Test {
 protected:
  PluginCommunicators() {
    calls.clear();
    is_failing = false;
    config_.name = "pair";
  }

  lockstep_engine_config config_{};
};

TEST_F(PluginCommunicators, TakesEveryCallAcross) {
  char memory[64];
  Buffer four{.data = memory, .count = 4, .dtype = DType::bfloat16, .device = DeviceKind::cuda};
  four.device_index = 5;
  four.stream = reinterpret_cast<void*>(7);
  Buffer one = four;
  one.count = 1;
  const std::vector<std::size_t> counts = {1, 3};
  const std::vector<std::size_t> others = {2, 2};
  {
    PluginCommunicator communicator(fake, config_);
    communicator.all_reduce(four, ReduceOp::max);
    communicator.broadcast(four, 1);
    communicator.reduce(four, 1, ReduceOp::product);
    communicator.all_gather(one, four, counts);
    communicator.reduce_scatter(four, one, counts, ReduceOp::min);
    communicator.all_to_all(four, four, counts, others);
    communicator.cancel();
  }
  const std::string of_four = "4 of type 3 on device 1.5 stream 7";
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "create pair", "all_reduce " + of_four + " op 4",
                       "broadcast " + of_four + " root 1", "reduce " + of_four + " root 1 op 2",
                       "all_gather 1 into 4: 1+3", "reduce_scatter 4 into 1: 1+3 op 3",
                       "all_to_all 1+3 for 2+2", "cancel", "destroy"}));
}

TEST_F(PluginCommunicators, ThrowsTheErrorReportedByThePlugin) {
  PluginCommunicator communicator(fake, config_);
  is_failing = true;
  std::string text;
  EXPECT_EQ(fault_of([&] { communicator.all_reduce({}, ReduceOp::sum); }, &text), Fault::timeout);
  EXPECT_NE(text.find("fake: too late"), std::string::npos) << text;
}

TEST_F(PluginCommunicators, DestroysNothingThatWasNotMade) {
  is_failing = true;
  EXPECT_EQ(fault_of([&] { PluginCommunicator(fake, config_); }), Fault::timeout);
  EXPECT_EQ(calls, std::vector<std::string>{"create pair"});
}

}  // namespace
}  // namespace lockstep::comm::plugin_communicator_test
