// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <thread>

namespace lockstep::comm::flight_recorder_test {
namespace {

using nlohmann::json;

json recorded(const Signature& signature) {
  FlightRecorder recorder;
  recorder.leave(recorder.enter(signature, 1, 0), FlightRecorder::Phase::completed, 1);
  return json::parse(recorder.json()).at(0);
}

TEST(FlightRecorder, ACollectiveHasTheHashOfItsLabelAndNoTag) {
  const json one = recorded({.label = 77, .operation = Operation::broadcast});
  EXPECT_EQ(one.at("label_hash"), 77);
  EXPECT_FALSE(one.contains("tag"));
  EXPECT_FALSE(recorded({.operation = Operation::broadcast}).contains("label_hash"));
}

TEST(FlightRecorder, AMessageHasItsTagAndNoLabel) {
  const json one = recorded({.label = 77, .operation = Operation::send});
  EXPECT_EQ(one.at("tag"), 77);
  EXPECT_FALSE(one.contains("label_hash"));
  EXPECT_EQ(recorded({.operation = Operation::send}).at("tag"), 0);
  const auto any = static_cast<std::uint64_t>(any_tag);
  EXPECT_EQ(recorded({.label = any, .operation = Operation::recv}).at("tag"), -1);
}

TEST(FlightRecorder, EntriesAreReadWholeWhileOthersAreRecorded) {
  FlightRecorder recorder;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done)
      for (const json& one : json::parse(recorder.json())) {
        EXPECT_EQ(one.at("count"), one.at("sequence"));
        EXPECT_EQ(one.at("root"), one.at("sequence"));
        EXPECT_EQ(one.at("phase") == "completed", one.contains("left_us"));
      }
  });
  for (int i = 1; i < 1'000'000; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const Signature signature{.count = number, .root = i, .operation = Operation::broadcast};
    recorder.leave(recorder.enter(signature, number, 1), FlightRecorder::Phase::completed, 2);
  }
  done = true;
  reader.join();
}

TEST(FlightRecorder, TheRecordHasAVersion) {
  const FlightRecorder none;
  const json record = json::parse(flight_record({.group = "world", .backend = "shm"}, none, none));
  EXPECT_EQ(record.at("version"), 2);
}

}  // namespace
}  // namespace lockstep::comm::flight_recorder_test
