// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin_parts.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/engine/plugin.h"
#include "tests/rigs/engine_call.h"

namespace lockstep::comm::plugin_parts_test {
namespace {

// --- Parts ---------------------------------------------------------------------------------------

std::array<std::int16_t, 6> numbers = {1, 2, 3, 4, 5, 6};

lockstep_buffer all_numbers() {
  return {.data = numbers.data(),
          .count = numbers.size(),
          .dtype = static_cast<std::uint8_t>(DType::int16),
          .device = 0,
          .device_index = 0,
          .stream = nullptr};
}

std::byte* address_of(std::size_t number) {
  return reinterpret_cast<std::byte*>(numbers.data() + number);
}

TEST(PluginParts, LieOneAfterTheOther) {
  const std::size_t counts[] = {1, 0, 5};
  const plugin::Parts parts(all_numbers(), counts, 3);
  EXPECT_EQ(parts.all.data, address_of(0));
  EXPECT_EQ(parts.all.bytes, 12u);
  EXPECT_EQ(parts.begins, (std::vector<std::size_t>{0, 2, 2}));
  EXPECT_EQ(parts.sizes, (std::vector<std::size_t>{2, 0, 10}));
  EXPECT_EQ(parts[2].data, address_of(1));
  EXPECT_EQ(parts[2].bytes, 10u);
}

TEST(PluginParts, AreTheSameForEachMember) {
  const plugin::Parts parts(plugin::whole(all_numbers()), 2);
  for (const int member : {0, 1}) {
    EXPECT_EQ(parts[member].data, address_of(0));
    EXPECT_EQ(parts[member].bytes, 12u);
  }
}

TEST(PluginParts, AreCopiedUnlessEmptyOrThereAlready) {
  const std::size_t counts[] = {2, 4};
  const plugin::Parts parts(all_numbers(), counts, 2);
  std::array<std::int16_t, 2> copied = {};
  plugin::copy_part(parts[0], reinterpret_cast<std::byte*>(copied.data()));
  EXPECT_EQ(copied, (std::array<std::int16_t, 2>{1, 2}));
  plugin::copy_part(parts[1], parts[1].data);
  plugin::copy_part({}, nullptr);
  EXPECT_EQ(numbers, (std::array<std::int16_t, 6>{1, 2, 3, 4, 5, 6}));
}

TEST(PluginParts, AreEqualIfAllCountsAre) {
  const std::size_t counts[] = {3, 3, 4};
  EXPECT_TRUE(plugin::are_equal(counts, 1));
  EXPECT_TRUE(plugin::are_equal(counts, 2));
  EXPECT_FALSE(plugin::are_equal(counts, 3));
}

// --- The store -----------------------------------------------------------------------------------

using Map = std::map<std::string, std::string>;

int set(void* self, const char* key, const void* value, std::size_t bytes,
        lockstep_engine_error* error) {
  if (*key == '\0') return plugin::fail(error, Fault::misuse, "no key");
  static_cast<Map*>(self)->insert_or_assign(key,
                                            std::string(static_cast<const char*>(value), bytes));
  return 0;
}

int wait(void* self, const char* key, void* value, std::size_t capacity, std::size_t* bytes,
         lockstep_engine_error* error) {
  const Map& map = *static_cast<Map*>(self);
  const auto found = map.find(key);
  if (found == map.end()) return plugin::fail(error, Fault::timeout, "nobody has set it");
  *bytes = found->second.size();
  found->second.copy(static_cast<char*>(value), capacity);
  return 0;
}

class PluginStore : public testing::Test {
 protected:
  Map map_;
  const plugin::Store store_{{.self = &map_, .set = set, .wait = wait}};
};

TEST_F(PluginStore, ReturnsEveryValueWhole) {
  for (const std::size_t bytes : {0u, 1u, 4096u, 4097u, 100'000u}) {
    std::string value(bytes, 'v');
    if (bytes > 0) value.back() = '\0';
    store_.set("key", value);
    EXPECT_EQ(map_["key"], value);
    EXPECT_EQ(store_.wait("key"), value);
    EXPECT_EQ(store_.wait<std::vector<std::uint8_t>>("key"),
              std::vector<std::uint8_t>(value.begin(), value.end()));
  }
}

template <class Act>
void expect_failed(Fault fault, const std::string& text, Act act) {
  try {
    act();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const plugin::Failed& failed) {
    EXPECT_EQ(failed.fault, fault);
    EXPECT_EQ(failed.text, text);
  }
}

TEST_F(PluginStore, ThrowsTheErrorOfTheStore) {
  expect_failed(Fault::misuse, "no key", [&] { store_.set("", std::string("value")); });
  expect_failed(Fault::timeout, "nobody has set it", [&] { store_.wait("key"); });
}

// --- The functions of a class --------------------------------------------------------------------

struct Mover {
  explicit Mover(const lockstep_engine_config&) {}
  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op) {
    return dtype == static_cast<std::uint8_t>(DType::float32) &&
           reduce_op == static_cast<std::uint8_t>(ReduceOp::sum);
  }
  void run(const lockstep_collective& call) { plugin::run_native(*this, call); }
  void move(const lockstep_collective&) { ++moved; }

  static constexpr plugin::Native<Mover> natives[] = {
      {Operation::all_reduce, &Mover::move},
      {Operation::broadcast, &Mover::move},
      {Operation::all_gather, &Mover::move},
      {Operation::all_to_all, &Mover::move},
  };

  int moved = 0;
};

struct Reducer : Mover {
  using Mover::Mover;
  static constexpr plugin::Native<Reducer> natives[] = {
      {Operation::all_reduce, &Reducer::move},
      {Operation::reduce, &Reducer::move},
      {Operation::reduce_scatter, &Reducer::move},
  };
};

constexpr lockstep_engine mover = plugin::engine_of<Mover>({.name = "mover"});
constexpr lockstep_engine reducer = plugin::engine_of<Reducer>({.name = "reducer"});

bool supports(const lockstep_engine& engine, Operation operation, DType dtype,
              ReduceOp op = ReduceOp::sum) {
  return engine.supports(static_cast<std::uint8_t>(operation), static_cast<std::uint8_t>(dtype),
                         static_cast<std::uint8_t>(op)) != 0;
}

TEST(PluginClass, MovesDataOfEveryType) {
  for (const Operation operation :
       {Operation::broadcast, Operation::all_gather, Operation::all_to_all}) {
    for (int dtype = 0; dtype < dtype_count; ++dtype)
      EXPECT_TRUE(supports(mover, operation, static_cast<DType>(dtype))) << dtype;
    EXPECT_FALSE(supports(mover, operation, static_cast<DType>(dtype_count)));
  }
  EXPECT_FALSE(supports(mover, Operation::barrier, DType::float32));
}

TEST(PluginClass, HasTheReductionsOfItsMembers) {
  EXPECT_TRUE(supports(mover, Operation::all_reduce, DType::float32));
  for (const Operation operation : {Operation::reduce, Operation::reduce_scatter}) {
    EXPECT_FALSE(supports(mover, operation, DType::float32));
    EXPECT_TRUE(supports(reducer, operation, DType::float32));
  }
}

TEST(PluginClass, CombinesTheTypesThatItsClassCombines) {
  for (const Operation operation :
       {Operation::all_reduce, Operation::reduce, Operation::reduce_scatter}) {
    EXPECT_FALSE(supports(reducer, operation, DType::float64));
    EXPECT_FALSE(supports(reducer, operation, DType::float32, ReduceOp::max));
  }
}

TEST(PluginClass, CallsTheMemberOfItsTableAndRefusesOtherOperations) {
  Mover communicator({});
  lockstep_engine_error error{};
  EXPECT_EQ(test::run(mover, &communicator, Operation::all_reduce, {}, &error), 0) << error.text;
  EXPECT_EQ(communicator.moved, 1);
  for (const Operation operation : {Operation::reduce, Operation::reduce_scatter}) {
    EXPECT_NE(test::run(mover, &communicator, operation, {}, &error), 0);
    EXPECT_EQ(error.fault, static_cast<int>(Fault::unsupported));
    EXPECT_EQ(std::string(error.text), "this engine has no " + std::string(name(operation)));
  }
  EXPECT_EQ(communicator.moved, 1);
}

TEST(PluginClass, EndsWithABarrierUnlessTheDataFitsIntoASocketsBuffer) {
  lockstep_collective call{};
  call.operation = static_cast<std::uint8_t>(Operation::all_gather);
  call.output = {.data = nullptr,
                 .count = plugin::sent_at_once,
                 .dtype = static_cast<std::uint8_t>(DType::int8),
                 .device = 0,
                 .device_index = 0,
                 .stream = nullptr};
  EXPECT_TRUE(plugin::is_sent_at_once(call));
  ++call.output.count;
  EXPECT_FALSE(plugin::is_sent_at_once(call));
  call.output.count = 0;
  call.operation = static_cast<std::uint8_t>(Operation::all_to_all);
  EXPECT_FALSE(plugin::is_sent_at_once(call));
}

}  // namespace
}  // namespace lockstep::comm::plugin_parts_test
