// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/flight_recorder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

TEST(FlightRecorder, TheRecordHasAVersion) {
  const FlightRecorder none;
  const json record = json::parse(flight_record({.group = "world", .backend = "shm"}, none, none));
  EXPECT_EQ(record.at("version"), 2);
}

}  // namespace
}  // namespace lockstep::comm::flight_recorder_test
