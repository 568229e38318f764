// F13: files of tokens. The first byte selects: the rest is a file of llm.c or of another format,
// or an index of Megatron-LM or fairseq, whose .bin file has the size in the next two bytes.

// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_format.h"
#include "lockstep/toolkit/datasets/tokens/token_format.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

template <class Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string llm_c(std::int32_t magic, std::int32_t version, std::size_t bytes) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = 6;
  return bytes_of_numbers(header) + std::string(bytes, 'x');
}

std::string megatron() {
  return std::string("MMIDIDX\0\0", 9) + bytes_of_numbers(std::vector<std::uint64_t>{1}) + '\x08' +
         bytes_of_numbers(std::vector<std::uint64_t>{3, 3}) +
         bytes_of_numbers(std::vector<std::int32_t>{5, 4, 1}) +
         bytes_of_numbers(std::vector<std::int64_t>{0, 10, 18}) +
         bytes_of_numbers(std::vector<std::int64_t>{0, 1, 3});
}

std::string fairseq() {
  return std::string("MMIDIDX\0\0", 9) + bytes_of_numbers(std::vector<std::uint64_t>{1}) + '\x08' +
         bytes_of_numbers(std::vector<std::uint64_t>{2}) +
         bytes_of_numbers(std::vector<std::int32_t>{5, 5}) +
         bytes_of_numbers(std::vector<std::int64_t>{0, 10});
}

void read_index(std::span<const std::byte> bytes, std::uint64_t bin_size) {
  const datasets::MegatronIndex index("x.idx", bytes, bin_size);
  expect(index.tokens().count * datasets::bytes_of(index.tokens().type) == bin_size);
  std::uint64_t least = 0;
  for (std::uint64_t i = 0; i <= index.documents(); ++i) {
    expect(index.begin_of_document(i) >= least);
    least = index.begin_of_document(i);
  }
  expect(least == index.tokens().count);
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string bin_size{'\x14', '\0'};
  return {'\0' + bin_size + llm_c(20240520, 1, 12),
          '\0' + bin_size + llm_c(20240801, 7, 24),
          '\1' + bin_size + megatron(),
          '\1' + bin_size + megatron() + "\1\1\1",
          '\1' + bin_size + fairseq(),
          '\0' + bin_size + std::string("\x80\2]q\0.", 6)};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size < 3) return 0;
  const auto bytes = std::as_bytes(std::span(data + 3, size - 3));
  try {
    if (data[0] % 2 == 1) {
      fuzz::read_index(bytes, data[1] + 256U * data[2]);
    } else if (const auto format = file_format_of(bytes)) {
      fuzz::expect(!format->name.empty());
    }
    if (data[0] % 2 == 1) return 0;
    if (const auto range = datasets::parse_llm_c("x.bin", bytes)) {
      fuzz::expect(range->begin + range->count * datasets::bytes_of(range->type) == bytes.size());
    }
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported);
  }
  return 0;
}
