// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/tokens/token_file.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::datasets::token_file_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::fault_of;
using Tokens = std::vector<std::int64_t>;

template <class Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

template <class Token>
std::string stored(const Tokens& tokens) {
  return bytes_of_numbers(std::vector<Token>(tokens.begin(), tokens.end()));
}

Tokens counted(std::int64_t count, std::int64_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string llm_c(const Tokens& tokens, std::int32_t magic = 20240520, std::int32_t version = 1) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  return bytes_of_numbers(header) +
         (magic == 20240801 ? stored<std::uint32_t>(tokens) : stored<std::uint16_t>(tokens));
}

void write_megatron(const fs::path& prefix, const std::vector<std::vector<Tokens>>& documents) {
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers, firsts{0};
  std::string bin;
  for (const auto& document : documents) {
    for (const Tokens& sequence : document) {
      lengths.push_back(static_cast<std::int32_t>(sequence.size()));
      pointers.push_back(static_cast<std::int64_t>(bin.size()));
      bin += stored<std::uint16_t>(sequence);
    }
    firsts.push_back(static_cast<std::int64_t>(lengths.size()));
  }
  std::string index("MMIDIDX\0\0", 9);
  index += bytes_of_numbers(std::vector<std::uint64_t>{1}) + '\x08' +
           bytes_of_numbers(std::vector<std::uint64_t>{lengths.size(), firsts.size()}) +
           bytes_of_numbers(lengths) + bytes_of_numbers(pointers) + bytes_of_numbers(firsts);
  std::ofstream(prefix.string() + ".idx", std::ios::binary) << index;
  std::ofstream(prefix.string() + ".bin", std::ios::binary) << bin;
}

struct Filled {
  std::vector<Tokens> data;
  std::vector<Tokens> target;
};

Filled fill(const TokenFile& file, const std::vector<std::size_t>& indices,
            std::int64_t epoch = 0) {
  const auto rows = static_cast<std::int64_t>(indices.size());
  const auto length = file.data_spec().sizes[0];
  const BatchRows batch{.indices = indices,
                        .data = at::full({rows, length}, -7, at::kLong),
                        .target = at::full({rows, length}, -7, at::kLong),
                        .seed = 5,
                        .epoch = epoch};
  file.fill(batch);
  Filled filled;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* const data = batch.data[row].const_data_ptr<std::int64_t>();
    const auto* const target = batch.target[row].const_data_ptr<std::int64_t>();
    filled.data.emplace_back(data, data + length);
    filled.target.emplace_back(target, target + length);
  }
  return filled;
}

class TokenFiles : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << bytes;
    return folder_.path() / name;
  }
  fs::path in_folder(const std::string& name) const { return folder_.path() / name; }

 private:
  const test::ScratchDirectory folder_;
};

TEST_F(TokenFiles, GiveEachTokenAsATargetOnceByDefault) {
  const TokenFile file(write("train.bin", llm_c(counted(14))), {.length = 4});
  EXPECT_EQ(file.tokens(), 14);
  EXPECT_EQ(file.size(), 3U);  // Token 13 fills no window.
  const Filled filled = fill(file, {2, 0});
  EXPECT_EQ(filled.data, (std::vector<Tokens>{{8, 9, 10, 11}, {0, 1, 2, 3}}));
  EXPECT_EQ(filled.target, (std::vector<Tokens>{{9, 10, 11, 12}, {1, 2, 3, 4}}));
}

TEST_F(TokenFiles, OverlapWithASmallerStride) {
  const TokenFile file(write("train.bin", llm_c(counted(8))), {.length = 4, .stride = 1});
  EXPECT_EQ(file.size(), 4U);
  EXPECT_EQ(fill(file, {3}).target, (std::vector<Tokens>{{4, 5, 6, 7}}));
}

TEST_F(TokenFiles, AreReadInEveryFormat) {
  const Tokens large = counted(9, 70'000);
  const TokenFile llama(write("llama.bin", llm_c(large, 20240801, 7)), {.length = 8});
  EXPECT_EQ(fill(llama, {0}).data[0], counted(8, 70'000));
  const TokenFile nano(write("nano.bin", stored<std::uint16_t>(counted(9, 65'000))),
                       {.length = 8, .raw = at::kUInt16});
  EXPECT_EQ(fill(nano, {0}).data[0], counted(8, 65'000));
  const std::pair<at::ScalarType, std::string> stores[]{
      {at::kByte, stored<std::uint8_t>(counted(9))},
      {at::kShort, stored<std::int16_t>(counted(9))},
      {at::kInt, stored<std::int32_t>(counted(9))},
      {at::kUInt32, stored<std::uint32_t>(counted(9))},
      {at::kLong, stored<std::int64_t>(counted(9))}};
  for (const auto& [type, bytes] : stores)
    EXPECT_EQ(fill(TokenFile(write("raw.bin", bytes), {.length = 8, .raw = type}), {0}).data[0],
              counted(8));
  write_megatron(in_folder("text"), {{counted(5)}, {counted(2, 5), counted(2, 7)}});
  for (const char* name : {"text", "text.idx", "text.bin"})
    EXPECT_EQ(fill(TokenFile(in_folder(name), {.length = 8}), {0}).target[0], counted(8, 1));
}

TEST_F(TokenFiles, FollowEachOtherWithoutAWindowAcross) {
  const TokenFile file(
      std::vector{write("a.bin", llm_c(counted(9))), write("b.bin", llm_c(counted(7, 100)))},
      {.length = 4});
  EXPECT_EQ(file.size(), 3U);
  EXPECT_EQ(fill(file, {1, 2}).data, (std::vector<Tokens>{{4, 5, 6, 7}, {100, 101, 102, 103}}));
  EXPECT_TRUE(file.sample_name(2).ends_with("b.bin: tokens 0 to 4")) << file.sample_name(2);
}

TEST_F(TokenFiles, BeginAtRandomTokensOfTheirOwnStrideInEachEpoch) {
  const TokenFile file(write("train.bin", llm_c(counted(1000))),
                       {.length = 10, .random_begin = true});
  const std::vector<std::size_t> all = [] {
    std::vector<std::size_t> indices(99);
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    return indices;
  }();
  ASSERT_EQ(file.size(), all.size());
  const Filled first = fill(file, all), again = fill(file, all), next = fill(file, all, 1);
  EXPECT_EQ(first.data, again.data);
  EXPECT_NE(first.data, next.data);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto begin = first.data[i][0];
    EXPECT_EQ(begin / 10, static_cast<std::int64_t>(i));
    EXPECT_EQ(first.target[i], counted(10, begin + 1));
  }
}

TEST_F(TokenFiles, FindDocumentBeginningsByTheMegatronIndex) {
  // Tokens 0 to 4; 5 to 8 in two sequences; an empty document; 9 to 12.
  write_megatron(in_folder("text"),
                 {{counted(5)}, {counted(2, 5), counted(2, 7)}, {}, {counted(4, 9)}});
  const TokenFile file(in_folder("text"), {.length = 6, .mask_document_ends = true});
  EXPECT_EQ(file.document_begins(0), (Tokens{0, 5}));
  EXPECT_EQ(file.document_begins(1), (Tokens{3}));
  EXPECT_EQ(fill(file, {0, 1}).target,
            (std::vector<Tokens>{{1, 2, 3, 4, -100, 6}, {7, 8, -100, 10, 11, 12}}));
}

TEST_F(TokenFiles, AreOneDocumentEachByDefault) {
  const auto path = write("train.bin", llm_c(counted(9)));
  const TokenFile file(std::vector{path, path}, {.length = 4});
  EXPECT_EQ(file.document_begins(0), Tokens{0});
  EXPECT_EQ(file.document_begins(1), Tokens());
  EXPECT_EQ(file.document_begins(2), Tokens{0});
}

TEST_F(TokenFiles, FindDocumentBeginningsByTheEndOfDocumentToken) {
  const auto path = write("train.bin", llm_c({1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 9}));
  const TokenFile file(path, {.length = 3, .end_of_document = 0, .mask_document_ends = true});
  EXPECT_EQ(file.document_begins(0), (Tokens{0}));
  EXPECT_EQ(file.document_begins(1), (Tokens{0}));
  EXPECT_EQ(file.document_begins(2), (Tokens{1}));
  EXPECT_EQ(fill(file, {0, 1, 2}).target,
            (std::vector<Tokens>{{2, 0, -100}, {4, 5, 0}, {-100, 7, 8}}));
}

TEST_F(TokenFiles, RefuseATokenBeyondTheVocabularyWithItsPlace) {
  Tokens tokens = counted(20);
  tokens[13] = 50;
  const TokenFile file(write("train.bin", llm_c(tokens)), {.length = 6, .vocabulary = 50});
  fill(file, {0, 1});
  std::string text;
  EXPECT_EQ(fault_of([&] { fill(file, {2}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("train.bin: byte 1050: expected a token below the vocabulary's size, 50, "
                      "found 50 as token 13"),
            text.npos)
      << text;
  const TokenFile negative(write("raw.bin", stored<std::int32_t>({1, -1, 2})),
                           {.length = 2, .raw = at::kInt, .vocabulary = 50});
  EXPECT_EQ(fault_of([&] { fill(negative, {0}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("found -1 as token 1"), text.npos) << text;
}

TEST_F(TokenFiles, RefuseFilesAndOptionsThatDoNotFit) {
  std::string text;
  const auto refusal = [&](const fs::path& path, const TokenFileOptions& options) {
    return fault_of([&] { TokenFile(path, options); }, &text);
  };
  const auto ten = write("ten.bin", llm_c(counted(10)));
  EXPECT_EQ(refusal(ten, {.length = 10}), Fault::misuse);
  EXPECT_NE(text.find("it has 10 tokens"), text.npos) << text;
  EXPECT_EQ(refusal(ten, {.length = 0}), Fault::misuse);
  EXPECT_EQ(refusal(ten, {.length = 4, .stride = 0}), Fault::misuse);
  EXPECT_EQ(refusal(ten, {.length = 4, .raw = at::kUInt16}), Fault::misuse);
  EXPECT_NE(text.find("llm.c's tokens with a header: leave TokenFileOptions::raw unset"), text.npos)
      << text;
  EXPECT_EQ(refusal(ten, {.length = 4, .raw = at::kFloat}), Fault::misuse);
  EXPECT_EQ(refusal(ten, {.length = 4, .mask_document_ends = true}), Fault::misuse);
  EXPECT_EQ(refusal(write("nano.bin", stored<std::uint16_t>(counted(10))), {.length = 4}),
            Fault::misuse);
  EXPECT_NE(text.find("kUInt16"), text.npos) << text;
  EXPECT_EQ(refusal(write("odd.bin", "abc"), {.length = 1, .raw = at::kUInt16}), Fault::corrupt);
  EXPECT_EQ(refusal(write("newer.bin", llm_c(counted(10), 20240520, 2)), {.length = 4}),
            Fault::unsupported);
  EXPECT_EQ(refusal(write("short.bin", llm_c(counted(10)) + "x"), {.length = 4}), Fault::corrupt);
  EXPECT_NE(text.find("short.bin: byte 8: expected a number of uint16 tokens that fits the file's "
                      "size, 1045, found 10"),
            text.npos)
      << text;
  for (const std::optional<at::ScalarType> raw : {std::optional(at::kUInt16), {}}) {
    EXPECT_EQ(refusal(write("empty.bin", ""), {.length = 4, .raw = raw}), Fault::corrupt);
    EXPECT_NE(text.find("empty.bin: the file is empty"), text.npos) << text;
  }
  EXPECT_EQ(refusal(in_folder("absent.bin"), {}), Fault::system);
  const std::string too_long(300, 'x');
  EXPECT_EQ(refusal(in_folder(too_long), {.length = 4}), Fault::system);
  EXPECT_NE(text.find(too_long + ": File name too long"), text.npos) << text;
}

TEST_F(TokenFiles, AreNotOtherFormatsWhateverTheirTypeIs) {
  std::string array("\x93NUMPY\x01\0\x76\0", 10);
  array += "{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }";
  array.resize(127, ' ');
  array += '\n' + stored<std::uint16_t>(counted(9));
  const auto path = write("tokens.npy", array);
  EXPECT_EQ(fill(TokenFile(path, {.length = 8}), {0}).data[0], counted(8));
  const std::pair<std::string, const char*> others[]{
      {array, ".npy"},
      {std::string("PK\3\4", 4) + std::string(60, '\0'), "zip"},
      {"\x1f\x8b\x08" + std::string(61, '\0'), "compressed by gzip: gunzip it"},
      {"BZh91AY&SY" + std::string(54, '\0'), "compressed by bzip2: bunzip2 it"},
      {std::string("\x5d\0\0\x80\0", 5) + std::string(8, '\xff') + std::string(51, '\0'),
       "compressed by lzma: unlzma it"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n",
       "a pointer of Git LFS, not the file itself: download the file"},
      {"PAR1" + std::string(56, '\0') + "PAR1", "Parquet"},
      {"ORC" + std::string(57, '\0') + "ORC\x17", "ORC"},
      {std::string("GGUF\3\0\0\0", 8) + std::string(56, '\0'), "GGUF"},
      {llm_c(counted(10), 20240522), "HellaSwag"},
      {llm_c(counted(10), 20240326, 3), "another file of llm.c"}};
  for (const auto& [bytes, word] : others)
    for (const at::ScalarType type : {at::kByte, at::kUInt16, at::kInt, at::kLong}) {
      std::string text;
      const auto file = write("foreign.bin", bytes);
      EXPECT_EQ(fault_of([&] { TokenFile(file, {.length = 1, .raw = type}); }, &text),
                Fault::misuse);
      EXPECT_NE(text.find(word), text.npos) << text;
    }
  const std::string text_file(200, 'x');  // Bytes are tokens, too.
  EXPECT_EQ(TokenFile(write("a.txt", text_file), {.length = 9, .raw = at::kByte}).tokens(), 200);
  EXPECT_EQ(fault_of([&] { TokenFile(in_folder("a.txt"), {.length = 9, .raw = at::kUInt16}); }),
            Fault::misuse);
}

TEST_F(TokenFiles, MayBeginWithSignaturesOfOtherFormatsIfRaw) {
  for (const char* begin :
       {"(I think", "ORCHARDS", "GGUF is ", "PAR1 for", "FEA1 and", "ARROW1, ", "BZh9 and"}) {
    const auto file = write("letters.txt", begin + std::string(191, 'x') + ".");
    EXPECT_EQ(TokenFile(file, {.length = 9, .raw = at::kByte}).tokens(), 200) << begin;
  }
  const auto tokens = write("orc.bin", "ORC" + std::string(61, '\1'));  // 0x524f is 21071.
  EXPECT_EQ(TokenFile(tokens, {.length = 9, .raw = at::kUInt16}).tokens(), 32);
  const auto lzma = write("lzma.bin", std::string("\x5d\0\0\x80", 4) + std::string(60, '\1'));
  EXPECT_EQ(TokenFile(lzma, {.length = 9, .raw = at::kUInt16}).tokens(), 32);
}

TEST_F(TokenFiles, RefuseADamagedIndexOfMegatron) {
  write_megatron(in_folder("text"), {{counted(5)}, {counted(4, 5)}});
  std::ifstream in(in_folder("text.idx"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(whole.size(), 34U + 2 * 12 + 3 * 8);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write("text.idx", whole.substr(0, size));
    EXPECT_EQ(fault_of([&] { TokenFile(in_folder("text"), {.length = 4}); }), Fault::corrupt)
        << size << " bytes";
  }
  for (std::size_t place = 18; place < whole.size(); ++place) {  // Every number is checked.
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x40);
    write("text.idx", damaged);
    EXPECT_EQ(fault_of([&] { TokenFile(in_folder("text"), {.length = 4}); }), Fault::corrupt)
        << "byte " << place;
  }
}

TEST_F(TokenFiles, RefuseToGoOnWithAFileThatWasChanged) {
  const auto path = write("train.bin", llm_c(counted(100)));
  const TokenFile file(path, {.length = 4});
  fill(file, {0});
  fs::resize_file(path, 1024 + 100);
  std::string text;
  EXPECT_EQ(fault_of([&] { fill(file, {0}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("was changed while it was in use"), text.npos) << text;
}

TEST_F(TokenFiles, RefuseToGoOnWithAnIndexThatWasChanged) {
  write_megatron(in_folder("text"), {{counted(5)}, {counted(4, 5)}});
  const TokenFile file(in_folder("text"), {.length = 4, .mask_document_ends = true});
  fill(file, {0});
  fs::last_write_time(in_folder("text.idx"), fs::file_time_type::clock::now() - 1h);
  std::string text;
  EXPECT_EQ(fault_of([&] { fill(file, {0}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("text.idx: the file was changed"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { file.document_begins(0); }), Fault::corrupt);
}

}  // namespace
}  // namespace lockstep::datasets::token_file_test
