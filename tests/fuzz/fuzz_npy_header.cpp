// F11: an array of NumPy. The first two bytes are the number of values' bytes behind the rest, so
// that headers which ask for them are whole.

// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/arrays/npy_header.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  using namespace std::string_literals;
  const auto npy = [](const std::string& version, std::string text, std::size_t bytes) {
    text.resize(118, ' ');
    std::string length = "\x76\0"s;
    if (version[0] != '\1') length += "\0\0"s;
    return std::string{static_cast<char>(bytes), '\0'} + "\x93NUMPY" + version + length + text;
  };
  return {npy("\1\0"s, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24),
          npy("\2\0"s, "{\"descr\": '|u1', 'shape': (5,), 'fortran_order': False}", 5),
          npy("\3\0"s, "{'descr': '<c16', 'fortran_order': False, 'shape': (), }", 16),
          npy("\1\0"s, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }", 0)};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size < 2) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 2, size - 2);
  file.append(data[0] + 256U * data[1], 'x');
  try {
    const data::NpyHeader header = data::parse_npy_header("x.npy", std::as_bytes(std::span(file)));
    fuzz::expect(header.begin + header.values * header.width == file.size());
    std::uint64_t values = 1;
    for (const std::int64_t dimension : header.shape)
      values *= static_cast<std::uint64_t>(dimension);
    fuzz::expect(values == header.values);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
  return 0;
}
