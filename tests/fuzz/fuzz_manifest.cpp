// F5: the manifest of a checkpoint. The first byte selects: the rest is read unchanged, or with a
// matching end and CRC-32C, so that broken manifests reach the parser.

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <limits>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/crc32c.h"
#include "lockstep/checkpoint/manifest.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

constexpr std::size_t end_size = 27;

std::string sealed(const std::string& text) {
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", lockstep::crc32c(std::as_bytes(std::span(text))));
  return text + ",\n  \"crc32c\": \"" + crc + "\"\n}\n";
}

Manifest example() {
  using Limits = std::numeric_limits<double>;
  Manifest manifest{.step = 100, .world_size = 2, .files = {}, .values = {}};
  manifest.files = {{.name = "model-00001-of-00002.safetensors",
                     .part = "model",
                     .bytes = 123,
                     .header_crc32c = 0x0123abcd,
                     .tensors = {{"weight", 0x89abcdef}, {"bias", 0}}},
                    {.name = "model-00002-of-00002.safetensors",
                     .part = "model",
                     .bytes = 16,
                     .header_crc32c = 1,
                     .tensors = {{"running_mean", 2}}}};
  manifest.values = {{"model", {}},
                     {"optimizer",
                      {{"lr", 1e-300},
                       {"step", std::int64_t{-3}},
                       {"done", false},
                       {"name", std::string("\xc3\xa9\n")},
                       {"best", -Limits::infinity()},
                       {"betas", std::vector<double>{0.9, -0.0, Limits::quiet_NaN()}}}}};
  return manifest;
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> found;
  for (const Manifest& manifest : {example(), Manifest{}}) {
    const std::string text = format_manifest(manifest);
    found.push_back('\0' + text);
    found.push_back('\1' + text.substr(0, text.size() - end_size));
  }
  return found;
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) text = fuzz::sealed(text);
  try {
    // Compares texts, because NaN is not equal to itself.
    const std::string again = format_manifest(parse_manifest("file", text));
    fuzz::expect(format_manifest(parse_manifest("file", again)) == again);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
  return 0;
}
