// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_header.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint::safetensors_header_test {
namespace {

SafetensorsHeader parse(const std::string& json, std::uint64_t data_size) {
  return parse_safetensors_header("model.safetensors", json, data_size);
}

void refuses(const std::string& json, std::uint64_t data_size, const std::string& part,
             Fault fault = Fault::corrupt) {
  try {
    parse(json, data_size);
    ADD_FAILURE() << "was accepted: " << json.substr(0, 200);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.fault(), fault) << message;
    EXPECT_NE(message.find("model.safetensors: "), message.npos) << message;
    EXPECT_NE(message.find(part), message.npos) << message;
    EXPECT_LT(message.size(), 500U);
  }
}

std::string two(const std::string& a, const std::string& b) {
  const std::string floats = R"({"dtype":"F32","shape":[2],"data_offsets":)";
  return R"({"a":)" + floats + a + R"(},"b":)" + floats + b + "}}";
}

std::string one(const std::string& fields) { return R"({"a":{)" + fields + "}}"; }

const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

TEST(SafetensorsHeader, ListsTensorsInTheOrderOfTheirData) {
  const auto header = parse(
      R"({"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},"__metadata__":{"format":"pt"},)"
      R"("a":{"data_offsets":[0,6],"shape":[3,1],"dtype":"BF16"}}   )",
      14);
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].type, SafetensorsType::BF16);
  EXPECT_EQ(header.entries[0].shape, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_TRUE(header.entries[1].shape.empty());
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(SafetensorsHeader, MayDescribeNothing) {
  EXPECT_TRUE(parse("{}", 0).entries.empty());
  EXPECT_EQ(parse(one(R"("dtype":"F32","shape":[0,7],"data_offsets":[0,0])"), 0).entries.size(),
            1U);
}

TEST(SafetensorsHeader, MustCoverTheDataWithoutOverlapOrHole) {
  EXPECT_EQ(parse(two("[0,8]", "[8,16]"), 16).entries.size(), 2U);
  EXPECT_EQ(parse(two("[8,16]", "[0,8]"), 16).entries.front().name, "b");
  refuses(two("[0,8]", "[0,8]"), 8, R"(tensor "b": expected its data at byte 8, found it at 0)");
  refuses(two("[0,8]", "[4,12]"), 12, R"(tensor "b")");
  refuses(two("[0,8]", "[9,17]"), 17, R"(tensor "b")");
  refuses(two("[1,9]", "[9,17]"), 17, R"(tensor "a")");
  refuses(two("[0,8]", "[8,16]"), 17, "expected 16 bytes of data, found 17");
  refuses(two("[0,8]", "[8,16]"), 15, R"(tensor "b": expected its data to end by byte 15)");
  refuses("{}", 1, "expected 0 bytes");
}

TEST(SafetensorsHeader, MustGiveEachTensorTheBytesOfItsShape) {
  refuses(two("[0,4]", "[4,12]"), 12, "F32 [2] takes 8 bytes, but lies from 0 to 4");
  refuses(two("[8,0]", "[8,16]"), 16, R"(tensor "a")");
  refuses(one(R"("dtype":"F64","shape":[2],"data_offsets":[0,8])"), 8, "takes 16");
}

TEST(SafetensorsHeader, MustNotOverflow) {
  for (const std::string shape :
       {"4611686018427387904", "4294967296,4294967296", "0,4294967296,4294967296",
        "9223372036854775807", "4611686018427387904,0,2"})
    refuses(one(R"("dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,0])"), 0,
            "larger than any file");
  refuses(one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0])"), 0,
          "too large");
  refuses(one(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,0])"), 0,
          "not a whole one");
  refuses(two("[0,8]", "[8,18446744073709551615]"), 16, "too large");
}

TEST(SafetensorsHeader, MustNotContainDuplicateNames) {
  EXPECT_NO_THROW(parse(one(good), 8));
  refuses(one(good + "," + good), 8, R"("dtype" occurs twice)");
  refuses(R"({"a":{)" + good + R"(},"a":{)" + good + "}}", 8, R"("a": the name occurs twice)");
  refuses(R"({"__metadata__":{},"__metadata__":{}})", 0, "twice");
  refuses(R"({"__metadata__":{"k":"1","k":"2"}})", 0, R"("k" occurs twice)");
  refuses(R"({"a":{)" + good + R"(},"\u0061":{)" + good + "}}", 8, "twice");
}

TEST(SafetensorsHeader, MustBeJsonInUtf8) {
  for (const std::string json :
       {"{", "{\"a\"", "{\"__metadata__\":{}", "{}}", "{} x", "{\"\xff\":{}}", "{,}",
        "{\"\xc0\x80\":{}}", "{\"\xed\xa0\x80\":{}}", "{\"a\n\":{}}", "{\"a\":NaN}",
        "{\"\\ud800\":{}}"})
    refuses(json, 0, "of the header: it is not JSON");
  refuses(std::string("{\0}", 3), 0, "not JSON");
  refuses(std::string("{}\0\0\0\0\0\0", 8), 0, "not JSON");  // Not allowed after the end either.
  refuses(std::string("{}\0{\"a\":1}", 10), 0, "byte 3 of the header: it is not JSON");
  refuses("", 0, "expected '{'");
  refuses(" {}", 0, "expected '{'");
  refuses("\xef\xbb\xbf{}", 0, "expected '{'");
  refuses("[]", 0, "expected '{'");
}

TEST(SafetensorsHeader, MustHaveTheOneForm) {
  refuses(R"({"a":1})", 0, "unexpected");
  refuses(R"({"a":"text"})", 0, "unexpected");
  refuses(R"({"a":[]})", 0, "unexpected");
  refuses(R"({"a":null})", 0, "unexpected");
  refuses(R"({"a":{}})", 0, "needs dtype, shape and data_offsets");
  refuses(R"({"__metadata__":null})", 0, "unexpected");
  refuses(R"({"__metadata__":{"k":1}})", 0, "unexpected");
  refuses(R"({"__metadata__":{"k":{}}})", 0, "unexpected");
  refuses(one(good + R"(,"more":1)"), 8, "unexpected");
  refuses(one(good + R"(,"more":"x")"), 8, "unexpected");
  refuses(one(good + R"(,"more":{})"), 8, "unexpected");
  refuses(one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8, "unexpected");
  refuses(one(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), 8, "unexpected");
  refuses(one(R"("dtype":"F32","shape":[true],"data_offsets":[0,8])"), 8, "unexpected");
  refuses(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, "-2 is negative");
  refuses(one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8, "not a whole one");
  refuses(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "not two numbers");
  refuses(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), 8, "unexpected");
  refuses(one(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), 8, "unexpected");
}

// Other tensors in the file can be read without the size of this type.
TEST(SafetensorsHeader, KeepsTheNamesOfTypesThatLibTorchLacks) {
  for (const std::string type : {"F4", "F6_E2M3", "C128", "f32", "", "F32 "}) {
    const auto header =
        parse(one(R"("dtype":")" + type + R"(","shape":[2],"data_offsets":[0,8])"), 8);
    EXPECT_EQ(header.entries[0].type, SafetensorsType::OTHER);
    EXPECT_EQ(header.entries[0].other_type, type);
    EXPECT_EQ(describe(header.entries[0]), shown(type) + " [2]");
  }
  refuses(one(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 2, "bytes of data");
  refuses(one(R"("dtype":"F4","shape":[2],"data_offsets":[1,0])"), 1, "lies from 1 to 0");
}

// By the specification. Python's reader accepts such a file, because its JSON parser skips spaces.
TEST(SafetensorsHeader, BeginsWithABrace) { refuses(" {}", 0, "expected '{', found \" \""); }

TEST(SafetensorsHeader, RefusesDeepNestingAtOnce) {
  const std::size_t depth = 10'000'000;
  refuses(R"({"a":)" + std::string(depth, '['), 0, "unexpected");
  refuses(one(R"("shape":)" + std::string(depth, '[')), 0, "unexpected");
  std::string objects;
  for (std::size_t i = 0; i < depth / 8; ++i) objects += R"({"a":)";
  refuses(objects, 0, "unexpected");
}

TEST(SafetensorsHeader, CutsAndCleansNamesInMessages) {
  refuses(R"({")" + std::string(1'000'000, 'x') + R"(":1})", 0, "x\"...");
  refuses(R"({"\u001b[2J":1})", 0, R"("\u001b[2J")");
}

TEST(SafetensorsHeader, IsWrittenAsTheReferenceWriterDoes) {
  SafetensorsHeader header;
  header.entries = {{.name = "byte", .type = SafetensorsType::U8, .shape = {3}},
                    {.name = "b", .type = SafetensorsType::F32, .shape = {2, 1}},
                    {.name = "a", .type = SafetensorsType::F32, .shape = {}},
                    {.name = "steps", .type = SafetensorsType::I64, .shape = {1}}};
  header.metadata = {{"format", "pt"}};
  lay_out(header);
  const std::string text = format_safetensors_header(header);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"steps":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[12,20]},)"
      R"("byte":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})";
  const std::size_t padded = (json.size() + 7) / 8 * 8;
  EXPECT_EQ(text.substr(8), json + std::string(padded - json.size(), ' '));
  EXPECT_EQ(text.substr(0, 8), std::string({static_cast<char>(padded % 256),
                                            static_cast<char>(padded / 256), 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(parse(text.substr(8), 23).entries.size(), 4U);
}

TEST(SafetensorsHeader, IsNotWrittenWithNamesThatCannotBeReadAgain) {
  const auto write = [](const std::string& a, const std::string& b) {
    SafetensorsHeader header;
    header.entries = {{.name = a, .shape = {1}}, {.name = b, .shape = {1}}};
    lay_out(header);
    return parse(format_safetensors_header(header).substr(8), 8).entries[0].name;
  };
  EXPECT_EQ(write("", "b"), "");
  EXPECT_EQ(write("a\"\\\n\x01", "\xc3\xa9"), "a\"\\\n\x01");
  EXPECT_THROW(write("a", "a"), Error);
  EXPECT_THROW(write("a", "__metadata__"), Error);
  EXPECT_THROW(write("a", "\xff"), Error);
}

}  // namespace
}  // namespace lockstep::checkpoint::safetensors_header_test
