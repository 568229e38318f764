// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/crc32c.h"

namespace lockstep::checkpoint::manifest_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

// Appends the matching end.
std::string sealed(const std::string& text) {
  return text + ",\n  \"crc32c\": \"" + hex(crc32c(bytes(text))) + "\"\n}\n";
}

std::string unsealed(const std::string& text) { return text.substr(0, text.size() - 27); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == text.npos) ADD_FAILURE() << from << " is not there";
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

void refuses(const std::string& text, const std::string& part, Fault fault = Fault::corrupt) {
  try {
    parse_manifest("runs/manifest.json", text);
    ADD_FAILURE() << "was accepted: " << text.substr(0, 2000);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.fault(), fault) << message;
    EXPECT_NE(message.find("runs/manifest.json: "), message.npos) << message;
    EXPECT_NE(message.find(part), message.npos) << message;
    EXPECT_LT(message.size(), 500U);
  }
}

Manifest small() {
  Manifest manifest{.step = 100, .world_size = 2, .files = {}, .values = {}};
  manifest.files = {{.name = "model-00001-of-00002.safetensors",
                     .part = "model",
                     .bytes = 123,
                     .header_crc32c = 0x0123abcd,
                     .tensors = {{"conv.weight", 0x89abcdef}}},
                    {.name = "model-00002-of-00002.safetensors",
                     .part = "model",
                     .bytes = 16,
                     .header_crc32c = 0,
                     .tensors = {}}};
  manifest.values = {
      {"model", {}},
      {"optimizer",
       {{"lr", 0.001}, {"step", std::int64_t{3}}, {"betas", std::vector<double>{0.9, 0.999}}}}};
  return manifest;
}

std::string changed(const std::string& from, const std::string& to) {
  return sealed(replaced(unsealed(format_manifest(small())), from, to));
}

StateValue through_json(const StateValue& value) {
  Manifest manifest;
  manifest.values["part"]["value"] = value;
  return parse_manifest("manifest.json", format_manifest(manifest)).values.at("part").at("value");
}

TEST(Crc32c, IsTheOneOfRfc3720) {
  EXPECT_EQ(crc32c({}), 0U);
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8a9136aaU);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\xff'))), 0x62a8ab43U);
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const std::string text = "a text of which all splits have one CRC";
  for (std::size_t at = 0; at <= text.size(); ++at)
    EXPECT_EQ(crc32c(bytes(text.substr(at)), crc32c(bytes(text.substr(0, at)))),
              crc32c(bytes(text)));
}

TEST(Manifest, IsJsonThatEndsInItsCrc) {
  const std::string body = R"({
  "format": "lockstep checkpoint",
  "version": 1,
  "step": 100,
  "world_size": 2,
  "files": [
    {"name": "model-00001-of-00002.safetensors", "part": "model", "bytes": 123, )"
                           R"("header_crc32c": "0123abcd", "tensors": {
      "conv.weight": "89abcdef"
    }},
    {"name": "model-00002-of-00002.safetensors", "part": "model", "bytes": 16, )"
                           R"("header_crc32c": "00000000", "tensors": {}}
  ],
  "values": {
    "model": {},
    "optimizer": {
      "betas": [0.9, 0.999],
      "lr": 0.001,
      "step": 3
    }
  })";
  EXPECT_EQ(format_manifest(small()), sealed(body));
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = parse_manifest("manifest.json", format_manifest(small()));
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.world_size, 2);
  EXPECT_EQ(manifest.values, small().values);
  ASSERT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.files[0].name, "model-00001-of-00002.safetensors");
  EXPECT_EQ(manifest.files[0].part, "model");
  EXPECT_EQ(manifest.files[0].bytes, 123U);
  EXPECT_EQ(manifest.files[0].header_crc32c, 0x0123abcdU);
  EXPECT_EQ(manifest.files[0].tensors, small().files[0].tensors);
  EXPECT_EQ(format_manifest(manifest), format_manifest(small()));
  EXPECT_TRUE(parse_manifest("m", format_manifest({})).files.empty());
}

TEST(Manifest, KeepsEveryValueAndItsType) {
  using Limits = std::numeric_limits<double>;
  const std::vector<double> doubles{0.0,
                                    3.0,
                                    -1e22,
                                    0.1,
                                    1.0 / 3,
                                    Limits::max(),
                                    Limits::lowest(),
                                    Limits::min(),
                                    Limits::denorm_min(),
                                    9007199254740993.0,
                                    std::nextafter(1.0, 2.0),
                                    infinity,
                                    -infinity};
  for (const double value : doubles) EXPECT_EQ(through_json(value), StateValue(value));
  EXPECT_EQ(through_json(doubles), StateValue(doubles));
  EXPECT_EQ(through_json(std::vector<double>{}), StateValue(std::vector<double>{}));
  using Integers = std::numeric_limits<std::int64_t>;
  for (const std::int64_t value : {Integers::min(), std::int64_t{-1}, std::int64_t{0},
                                   std::int64_t{9007199254740993}, Integers::max()})
    EXPECT_EQ(through_json(value), StateValue(value));
  for (const bool value : {false, true}) EXPECT_EQ(through_json(value), StateValue(value));
  for (const std::string& value : {std::string(), std::string("\0\"\\\n\x7f \xc3\xa9", 8),
                                   std::string("inf"), std::string("{\"double\": \"inf\"}")})
    EXPECT_EQ(through_json(value), StateValue(value));
}

TEST(Manifest, KeepsTheSignOfZeroAndThatOfNoNumber) {
  EXPECT_TRUE(std::signbit(std::get<double>(through_json(-0.0))));
  EXPECT_TRUE(
      std::signbit(std::get<std::vector<double>>(through_json(std::vector<double>{-0.0}))[0]));
  EXPECT_TRUE(std::isnan(std::get<double>(through_json(std::nan("7")))));
  EXPECT_TRUE(
      std::isnan(std::get<std::vector<double>>(through_json(std::vector<double>{1.0, -NAN}))[1]));
}

TEST(Manifest, KeepsRandomDoubles) {
  std::uint64_t state = 88172645463325252;
  std::vector<double> values;
  while (values.size() < 20'000) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (const auto value = std::bit_cast<double>(state); std::isfinite(value))
      values.push_back(value);
  }
  EXPECT_EQ(through_json(values), StateValue(values));
}

TEST(Manifest, IsRefusedWithAnyBitFlipped) {
  const std::string whole = format_manifest(small());
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    refuses(flipped, "CRC-32C");
  }
}

TEST(Manifest, IsRefusedAtEveryTruncation) {
  const std::string whole = format_manifest(small());
  for (std::size_t length = 0; length < whole.size(); ++length)
    refuses(whole.substr(0, length), "does not end in its CRC-32C");
  refuses(whole + "\n", "does not end");
  refuses(whole.substr(1), "was changed");
  refuses(whole + whole, "was changed");
}

TEST(Manifest, IsRefusedBeyondItsLimit) {
  refuses(std::string(manifest_limit + 1, ' '), "exceed the limit");
  Manifest large;
  large.values["part"]["text"] = std::string(manifest_limit, ' ');
  EXPECT_THROW(format_manifest(large), Error);
}

TEST(Manifest, MustNotContainDuplicates) {
  refuses(changed(R"("step": 100)", R"("step": 100, "step": 100)"), R"("step": the key occurs)");
  refuses(changed(R"("values")", R"("crc32c": "00000000", "values")"), "occurs twice");
  refuses(changed(R"("bytes": 123)", R"("bytes": 123, "bytes": 123)"),
          "file 1: \"bytes\": the key");
  refuses(changed(R"("conv.weight": "89abcdef")",
                  R"("conv.weight": "89abcdef", "conv\u002eweight": "89abcdef")"),
          R"(tensor "conv.weight": the key occurs twice)");
  refuses(changed(R"("model": {})", R"("model": {}, "model": {})"), R"("model": the key)");
  refuses(changed(R"("lr": 0.001)", R"("lr": 0.001, "lr": 0.002)"), R"(value "lr": the key)");
  refuses(changed("0.001", R"({"double": "inf", "double": "inf"})"), "the key occurs twice");
  refuses(changed("model-00002", "model-00001"), "occurs twice");
  refuses(changed(R"("tensors": {})", R"("tensors": {"conv.weight": "00000000"})"),
          R"(the tensor "conv.weight" is in two files of the part "model")");
}

TEST(Manifest, MayHaveOneNameInTwoParts) {
  Manifest manifest = small();
  manifest.files[1] = {.name = "optimizer-00001-of-00001.safetensors",
                       .part = "optimizer",
                       .bytes = 1,
                       .header_crc32c = 0,
                       .tensors = {{"conv.weight", 1}}};
  EXPECT_EQ(parse_manifest("m", format_manifest(manifest)).files.size(), 2U);
}

TEST(Manifest, MustHaveAllKeysAndNoOther) {
  refuses(changed("  \"step\": 100,\n", ""), R"("step": the key is absent)");
  refuses(changed(R"("bytes": 123, )", ""), R"(file 1: "bytes": the key is absent)");
  refuses(changed(R"("step": 100)", R"("step": 100, "steps": 1)"),
          R"("steps": the key is unknown)");
  refuses(changed(R"("bytes": 123)", R"("bytes": 123, "mode": 1)"),
          R"("mode": the key is unknown)");
  refuses(changed("0.001", R"({"float": "inf"})"), "the key is unknown");
  refuses(changed("0.001", "{}"), "unexpected");
}

TEST(Manifest, MustHaveValuesOfTheRightType) {
  for (const std::string value :
       {"null", "{}", "[null]", "[1]", "[[1.0]]", "[true]", "[\"inf\"]", R"({"double": 1.0})",
        R"({"double": "NaN"})", "9223372036854775808", "-9223372036854775809",
        "18446744073709551616", R"({"double": {"double": "inf"}})"})
    refuses(changed("0.001", value), R"(part "optimizer": value "lr": )");
  for (const std::string step : {"-1", "1.0", "true", "\"1\"", "null", "[]", "{}", "1e2",
                                 "9223372036854775808", "18446744073709551616"})
    refuses(changed(R"("step": 100)", "\"step\": " + step), "\"step\": ");
  for (const std::string size : {"0", "-1", "2147483648", "1.5"})
    refuses(changed(R"("world_size": 2)", "\"world_size\": " + size), "");
  for (const std::string bytes : {"-1", "0.5", "18446744073709551616", "\"1\""})
    refuses(changed(R"("bytes": 123)", "\"bytes\": " + bytes), "file 1: \"bytes\": ");
  for (const std::string crc :
       {"\"0123abc\"", "\"0123abcde\"", "\"0123ABCD\"", "\"0123abcg\"", "\"\"", "19049421"})
    refuses(changed(R"("0123abcd")", crc), "\"header_crc32c\": ");
  refuses(changed("\"files\": [", "\"files\": [1, "), "\"files\": ");
  refuses(changed(R"("model": {})", R"("model": [])"), "\"model\": ");
}

TEST(Manifest, MustBeJsonInUtf8) {
  const std::string body = unsealed(format_manifest(small()));
  refuses(sealed(body + "\xff"), "not JSON");
  refuses(sealed(body + " /* comment */"), "not JSON");
  refuses(sealed(body.substr(0, body.size() - 1)), "");
  refuses(sealed(body + "}"), R"("crc32c": the key is absent)");
  refuses(sealed("\xef\xbb\xbf" + body), "not JSON");
  refuses(sealed(" " + body), "not JSON");
  refuses(sealed(""), "not JSON");
  refuses(sealed("{"), "not JSON");
  refuses(sealed("[1"), "not JSON");
  refuses(changed("conv.weight", "\xed\xa0\x80"), "not JSON");
  refuses(changed("0.001", "1e999"), "not JSON");
  refuses(changed("0.001", "NaN"), "not JSON");
  // The parser treats a zero byte as the end.
  refuses(sealed(body + ", \"crc32c\": \"\"}" + std::string(1, '\0')), "not JSON");
}

TEST(Manifest, RefusesDeepNestingAtOnce) {
  refuses(changed("0.001", std::string(10'000'000, '[')), "unexpected");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += R"({"double":)";
  refuses(changed("0.001", objects), "unexpected");
}

TEST(Manifest, IsNotSupportedInALaterVersion) {
  refuses(changed(R"("version": 1)", R"("version": 2, "more": [])"), "it is 2", Fault::unsupported);
  refuses(changed(R"("version": 1)", R"("version": 0)"), "no version 0");
  refuses(changed("lockstep checkpoint", "another"), "expected \"lockstep checkpoint\"");
}

TEST(Manifest, NamesOnlyFilesBesideIt) {
  for (const std::string name :
       {"../../x", "/etc/passwd", "", ".", "..", "../model-00001-of-00002.safetensors",
        ".model-00001-of-00002.safetensors", "x/model-00001-of-00002.safetensors",
        "model-1-of-2.safetensors", "model-00001-of-00002.safetensors/..",
        "model-00001-of-00002.safetensors\\u0000", "model-00001-of-00002.SAFETENSORS",
        "model-00001-of-00002", "model.safetensors", "other-00001-of-00002.safetensors",
        "model-0000\xd9\xa1-of-00002.safetensors", "manifest.json"})
    refuses(changed("model-00001-of-00002.safetensors", name), "is not a valid file name");
  refuses(changed(R"("part": "model")", R"("part": "mode")"), "which has no values");
  refuses(changed(R"("model": {})", R"("mode": {})"), "which has no values");
  for (const std::string part : {"", "..", "a/b", "-a", "a b", "\xc3\xa9"})
    refuses(changed(R"("optimizer")", "\"" + part + "\""), "is not a valid name for a part");
}

TEST(Manifest, IsNotWrittenUnlessItCanBeRead) {
  const auto refused = [](auto change) {
    Manifest manifest = small();
    change(manifest);
    try {
      format_manifest(manifest);
      ADD_FAILURE() << "was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::misuse) << error.what();
    }
  };
  refused([](Manifest& m) { m.step = -1; });
  refused([](Manifest& m) { m.world_size = 0; });
  refused([](Manifest& m) { m.files[1].name = m.files[0].name; });
  refused([](Manifest& m) { m.files[1].tensors = m.files[0].tensors; });
  refused([](Manifest& m) { m.files[0].name = "../../x"; });
  refused([](Manifest& m) { m.files[0].part = "other"; });
  refused([](Manifest& m) { m.files[0].tensors["\xff"] = 0; });
  refused([](Manifest& m) { m.values["a/b"]; });
  refused([](Manifest& m) { m.values["model"]["\xff"] = true; });
  refused([](Manifest& m) { m.values["model"]["a"] = "\xc0\x80"; });
}

TEST(PartName, HasLettersDigitsUnderscoresAndHyphens) {
  for (const std::string name : {"m", "model", "Model_2", "0", "_", "a-b", "a-"})
    EXPECT_TRUE(is_part_name(name)) << name;
  EXPECT_TRUE(is_part_name(std::string(64, 'x')));
  EXPECT_FALSE(is_part_name(std::string(65, 'x')));
  for (const std::string name : {"", "-", "-a", ".", "a.b", "a/b", "a b", "\xc3\xa9", "a\n"})
    EXPECT_FALSE(is_part_name(name)) << name;
}

}  // namespace
}  // namespace lockstep::checkpoint::manifest_test
