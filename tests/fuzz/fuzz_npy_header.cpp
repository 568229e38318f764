// F11: a NumPy array or an .npz. The first two bytes are 255 and 255 for an .npz. For an array,
// they are the number of value bytes that are appended, so that headers which need them are
// accepted.

// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/arrays/npy_header.h"
#include "lockstep/toolkit/datasets/arrays/npz_file.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

// A zip archive with the stored file "x.npy", which has the bytes "npy".
std::string example_npz() {
  using namespace std::string_literals;
  const std::string about =
      "\x14\0\0\0\0\0\0\0\x21\0"s + "\x9c\x6d\x1c\x1d"s + "\3\0\0\0\3\0\0\0\5\0\0\0"s;
  const std::string file = "PK\3\4"s + about + "x.npynpy";
  const std::string directory = "PK\1\2\x14\0"s + about + "\0\0\0\0\0\0\0\0\0\0\0\0\0\0"s + "x.npy";
  const auto u32 = [](std::size_t number) {
    return std::string{static_cast<char>(number), static_cast<char>(number >> 8), '\0', '\0'};
  };
  return file + directory + "PK\5\6\0\0\0\0\1\0\1\0"s + u32(directory.size()) + u32(file.size()) +
         "\0\0"s;
}

void read_npz(std::span<const std::byte> bytes) {
  for (const std::string& name : datasets::names_in_npz("x.npz", bytes)) {
    std::vector<std::byte> memory;
    const auto allocate = [&](std::uint64_t size) {
      if (size > 1 << 20) throw Error(Fault::corrupt, "more than an input has");
      memory.resize(size);
      return std::span(memory);
    };
    const auto array = datasets::array_in_npz("x.npz", bytes, name, allocate);
    const bool is_mapped =
        array.data() >= bytes.data() && array.data() + array.size() <= bytes.data() + bytes.size();
    expect(is_mapped || array.data() == memory.data());
  }
}

}  // namespace

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
          npy("\1\0"s, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }", 0),
          npy("\1\0"s, "{'descr': 'float32', 'fortran_order': True, 'shape': (2L, 3L), }", 24),
          npy("\1\0"s, "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }", 16),
          "\xff\xff" + example_npz()};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size < 2) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t values = data[0] + 256U * data[1];
  if (values != 0xffff) file.append(values, 'x');
  try {
    if (values == 0xffff) {
      fuzz::read_npz(std::as_bytes(std::span(file)));
      return 0;
    }
    const datasets::NpyHeader header =
        datasets::parse_npy_header("x.npy", std::as_bytes(std::span(file)));
    fuzz::expect(header.begin + header.values * header.width == file.size());
    std::uint64_t product = 1;
    for (const std::int64_t dimension : header.shape)
      product *= static_cast<std::uint64_t>(dimension);
    fuzz::expect(product == header.values);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
  return 0;
}
