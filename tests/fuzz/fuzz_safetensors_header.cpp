// F4: the header of a safetensors file, and the index of several files. The first byte selects one
// of three: the JSON of a file whose data size is in the next two bytes; an index; or a header that
// is built from the input, written and read again.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/safetensors_index.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

auto fields(const SafetensorsEntry& entry) {
  return std::tie(entry.begin, entry.end, entry.name, entry.type, entry.shape);
}

bool is_same(SafetensorsHeader a, SafetensorsHeader b) {
  const auto less = [](const auto& x, const auto& y) { return fields(x) < fields(y); };
  std::ranges::sort(a.entries, less);
  std::ranges::sort(b.entries, less);
  return a.metadata == b.metadata &&
         std::ranges::equal(a.entries, b.entries,
                            [](const auto& x, const auto& y) { return fields(x) == fields(y); });
}

// Checks that a written header can be read, and is the same.
void check_round_trip(const SafetensorsHeader& header) {
  std::uint64_t size = 0;
  for (const SafetensorsEntry& entry : header.entries) size = std::max(size, entry.end);
  const std::string text = format_safetensors_header(header);
  expect(text.size() % 8 == 0);
  expect(is_same(parse_safetensors_header("file", text.substr(8), size), header));
}

void read(std::string_view json, std::uint64_t data_size) {
  try {
    SafetensorsHeader header = parse_safetensors_header("file", json, data_size);
    std::uint64_t end = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      expect(entry.begin == end && entry.end >= end);
      end = entry.end;
    }
    expect(end == data_size);
    const bool has_other =
        std::ranges::count(header.entries, SafetensorsType::OTHER, &SafetensorsEntry::type) != 0;
    if (has_other) return;  // Read, but never written.
    lay_out(header);
    expect(header.entries.empty() ? data_size == 0 : header.entries.back().end == data_size);
    check_round_trip(header);
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
}

void read_index(std::string_view json) {
  try {
    const SafetensorsIndex index = parse_safetensors_index("file", json);
    for (const auto& [name, file] : index) expect(!file.starts_with('/'));
    expect(parse_safetensors_index("file", format_safetensors_index(index, 3)) == index);
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt);
  }
}

// Format per entry: a byte for its type, one for the rank of its shape, that many dimensions, one
// for the length of its name, and the name.
void write(std::string_view bytes) {
  const auto take = [&] {
    const auto value = static_cast<unsigned char>(bytes.empty() ? 0 : bytes.front());
    bytes.remove_prefix(bytes.empty() ? 0 : 1);
    return value;
  };
  SafetensorsHeader header;
  while (!bytes.empty()) {
    SafetensorsEntry entry;
    entry.type =
        static_cast<SafetensorsType>(take() % (static_cast<int>(SafetensorsType::U64) + 1));
    for (int rank = take() % 10; rank > 0; --rank) entry.shape.push_back(take());
    const std::size_t wanted = take() % 16;
    const std::size_t length = std::min(wanted, bytes.size());
    entry.name = bytes.substr(0, length);
    bytes.remove_prefix(length);
    if (take() % 4 == 0) header.metadata[entry.name] = entry.name;
    header.entries.push_back(std::move(entry));
  }
  try {
    lay_out(header);
    check_round_trip(header);
  } catch (const Error& error) {  // Invalid names, or sizes beyond any file.
    expect(error.fault() == Fault::misuse);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  using namespace std::string_literals;
  return {
      "\0\x0e\0"s
      R"({"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},"__metadata__":{"format":"pt"},)"
      R"("a":{"data_offsets":[0,6],"shape":[3,1],"dtype":"BF16"}}   )",
      "\0\0\0"s
      R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})",
      "\0\0\0{}"s,
      "\2\0\0"s
      R"({"metadata":{"total_size":24,"x":[null,true,-1,1.5]},"weight_map":{"a":"b/c"}})",
      "\1\7\2\2\3\1a\0\1\1\5\1b\1"s,
      "\1\3\0\3\xc3\xa9z\1"s,
  };
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  if (size < 3) return 0;
  const std::string input(reinterpret_cast<const char*>(data), size);
  switch (data[0] % 4) {
    case 0:
      read(std::string_view(input).substr(3), data[1] + 256U * data[2]);
      break;
    case 2:
      read_index(std::string_view(input).substr(3));
      break;
    default:
      write(std::string_view(input).substr(1));
  }
  return 0;
}
