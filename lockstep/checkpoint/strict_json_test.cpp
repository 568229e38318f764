// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/strict_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::checkpoint::strict_json_test {
namespace {

// Reads objects such as {"a": 1}.
class Numbers final : public StrictJson {
 public:
  Numbers() : StrictJson("numbers.json", " of the text") {}

  bool start_object(std::size_t) override {
    if (std::exchange(is_inside_, true)) fail("unexpected object");
    return true;
  }

  bool key(std::string& text) override {
    for (const std::string& earlier : keys)
      if (earlier == text) fail("the key " + shown(text) + " occurs twice");
    keys.push_back(text);
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    values.push_back(small<std::int32_t>(value));
    return goes_on;
  }

  bool end_object() override { return true; }
  bool end_array() override { return true; }

  std::vector<std::string> keys;
  std::vector<std::int32_t> values;
  bool goes_on = true;

 private:
  std::string context() const override { return keys.empty() ? "" : shown(keys.back()) + ": "; }

  bool is_inside_ = false;
};

class Arrays final : public StrictJson {
 public:
  Arrays() : StrictJson("arrays.json") {}

  bool start_array(std::size_t) override {
    ++depth;
    return true;
  }

  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool end_array() override { return true; }

  std::size_t depth = 0;

 private:
  std::string context() const override { return {}; }
};

void refuses(const std::string& json, const std::string& part) {
  std::string text;
  EXPECT_EQ(test::fault_of([&] { Numbers().read(json); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("numbers.json: "), text.npos) << text;
  EXPECT_NE(text.find(part), text.npos) << text;
}

TEST(StrictJson, GivesItsReaderEveryKeyAndValueInOrder) {
  Numbers numbers;
  numbers.read(R"( {"b": 1, "a": 2147483647} )");
  EXPECT_EQ(numbers.keys, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(numbers.values, (std::vector<std::int32_t>{1, 2147483647}));
}

TEST(StrictJson, GivesItsReaderBothOfTwoEqualKeys) {
  refuses(R"({"a": 1, "a": 2})", R"("a": the key "a" occurs twice)");
  refuses(R"({"a": 1, "\u0061": 2})", R"(the key "a" occurs twice)");
}

TEST(StrictJson, RefusesEveryEventThatItsReaderDoesNotTake) {
  refuses(R"({"a": {}})", R"("a": unexpected object)");
  refuses(R"({"a": []})", R"("a": unexpected array)");
  refuses(R"({"a": "x"})", R"("a": unexpected string)");
  refuses(R"({"a": -1})", R"("a": unexpected number -1)");
  refuses(R"({"a": 1.5})", R"("a": unexpected number "1.5")");
  refuses(R"({"a": true})", R"("a": unexpected truth value)");
  refuses(R"({"a": null})", R"("a": unexpected null)");
  refuses("[]", "unexpected array");
}

TEST(StrictJson, RefusesNumbersThatDoNotFit) {
  refuses(R"({"a": 2147483648})", R"("a": the number 2147483648 is too large)");
  refuses(R"({"a": 18446744073709551616})", "18446744073709551616");
}

TEST(StrictJson, RefusesAZeroByteWhereverItIs) {
  const auto with_zero = [](std::string text) {
    text.replace(text.find('#'), 1, 1, '\0');
    return text;
  };
  refuses(with_zero("#{}"), "byte 1 of the text: it is not JSON");
  refuses(with_zero("{}#"), "byte 3 of the text: it is not JSON");
  refuses(with_zero("{}#{\"a\": 1}"), "byte 3 of the text: it is not JSON");
  refuses(with_zero("{\"a#\": 1}"), "byte 4 of the text: it is not JSON");
}

TEST(StrictJson, RefusesWhatFollowsTheFirstValue) {
  refuses("{} x", "it is not JSON");
  refuses("{}{}", "it is not JSON");
  refuses("{},", "it is not JSON");
  refuses("{} // comment", "it is not JSON");
  EXPECT_NO_THROW(Numbers().read("{}\n\t \r"));
}

TEST(StrictJson, RefusesWhatIsNotJsonInUtf8) {
  refuses("", "it is not JSON");
  refuses("{", "it is not JSON");
  refuses("{\"a\": 1,}", "it is not JSON");
  refuses("{\"\xff\": 1}", "it is not JSON");
  refuses("\xef\xbb\xbf{}", "byte 1 of the text: it is not JSON");
}

TEST(StrictJson, NeedsNoStackForDeepNesting) {
  constexpr std::size_t depth = 10'000'000;
  Arrays arrays;
  arrays.read(std::string(depth, '[') + std::string(depth, ']'));
  EXPECT_EQ(arrays.depth, depth);
  EXPECT_EQ(test::fault_of([&] { Arrays().read(std::string(depth, '[')); }), Fault::corrupt);
}

TEST(StrictJson, DoesNotTakeAHalfReadTextForAWholeOne) {
  Numbers numbers;
  numbers.goes_on = false;
  EXPECT_EQ(test::fault_of([&] { numbers.read(R"({"a": 1, "b": 2})"); }), Fault::bug);
}

TEST(JsonText, IsEscapedAndRefusesWhatIsNotUtf8) {
  EXPECT_EQ(json_text("manifest", "a\"\n"), R"("a\"\n")");
  std::string text;
  EXPECT_EQ(test::fault_of([] { json_text("manifest", "\xff"); }, &text), Fault::misuse);
  EXPECT_NE(text.find("manifest: "), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::checkpoint::strict_json_test
