// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/image_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <fstream>
#include <numeric>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "tests/ranks.h"

namespace lockstep::datasets::image_files_test {
namespace {

std::string small_file() {
  std::string bytes{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 5};
  for (char value = 0; value < 30; ++value) bytes += value;
  return bytes;
}

std::string header_of(std::uint32_t count) {
  std::string bytes{0, 0, 8, 1};
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(count >> shift);
  return bytes;
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

class Idx : public testing::Test {
 protected:
  IdxArray read(const std::string& bytes) {
    std::ofstream(file_, std::ios::binary) << bytes;
    return read_idx(file_);
  }

  std::string error(const std::string& bytes, Fault fault = Fault::corrupt) {
    try {
      read(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), fault) << error.what();
      EXPECT_NE(std::string(error.what()).find(file_.string()), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  const test::ScratchDirectory scratch_;
  const std::filesystem::path file_ = scratch_.path() / "values-idx3-ubyte";
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Idx, ReadsPlainAndPackedFilesAlike) {
  std::vector<std::uint8_t> values(30);
  std::iota(values.begin(), values.end(), std::uint8_t{0});
  for (const std::string& bytes : {small_file(), gzip(small_file())}) {
    const IdxArray array = read(bytes);
    EXPECT_EQ(array.shape, (std::vector<std::uint32_t>{2, 3, 5}));
    EXPECT_EQ(array.values, values);
  }
}

TEST_F(Idx, ReadsAFileOfSeveralMegabytes) {
  std::string bytes = header_of(5'000'000);
  for (std::uint32_t i = 0, x = 1; i < 5'000'000; ++i, x = x * 1664525 + 1013904223)
    bytes += static_cast<char>(x >> 24);
  for (const std::string& file : {bytes, gzip(bytes)}) {
    const IdxArray array = read(file);
    EXPECT_EQ(std::string(array.values.begin(), array.values.end()), bytes.substr(8));
  }
}

TEST_F(Idx, ReadsAnArrayWithoutValues) {
  EXPECT_TRUE(read(header_of(0)).values.empty());
  EXPECT_TRUE(read(gzip(header_of(0))).values.empty());
}

TEST_F(Idx, RefusesEveryTruncation) {
  const std::string plain = small_file();
  for (std::size_t length = 0; length < plain.size(); ++length) error(plain.substr(0, length));
  const std::string packed = gzip(plain);
  for (std::size_t length = 0; length < packed.size(); ++length) error(packed.substr(0, length));
}

TEST_F(Idx, ReportsAnErrorWithItsPosition) {
  EXPECT_TRUE(contains(error(small_file().substr(0, 45)),
                       "byte 4: expected dimensions that fit the size of the file, 45, found 30"));
  EXPECT_TRUE(contains(error(small_file().substr(0, 6)), "byte 6: expected 2 more bytes"));
  EXPECT_TRUE(contains(error(gzip(small_file().substr(0, 45))), "45 in its gzip trailer"));
}

TEST_F(Idx, RefusesTrailingBytes) {
  error(small_file() + '\0');
  error(gzip(small_file() + '\0'));
  error(gzip(small_file()) + '\0');
  error(gzip(small_file()) + gzip(small_file()));
}

TEST_F(Idx, RefusesAWrongMagicNumber) {
  for (const std::size_t byte : {0, 1, 2, 3})
    for (const int value : {0, 1, 10, 0x7f, 0xff}) {
      std::string bytes = small_file();
      if (bytes[byte] == static_cast<char>(value)) continue;
      bytes[byte] = static_cast<char>(value);
      error(bytes);
    }
  error("");
  error("<!DOCTYPE html><html>404</html>");
}

TEST_F(Idx, RefusesElementsThatAreNotBytes) {
  for (const int type : {0x09, 0x0b, 0x0c, 0x0d, 0x0e}) {
    std::string bytes = small_file();
    bytes[2] = static_cast<char>(type);
    EXPECT_TRUE(contains(error(bytes, Fault::unsupported), std::to_string(type)));
  }
}

TEST_F(Idx, RefusesCountsThatNoFileHolds) {
  const std::string values(30, '\0');
  error(header_of(0xffffffff) + values);
  error(gzip(header_of(0xffffffff) + values));
  const std::string eight_times_the_most = std::string{0, 0, 8, 8} + std::string(32, '\xff');
  EXPECT_TRUE(contains(error(eight_times_the_most + values), "product fits 64 bits"));
  // 2^32 * 2^32 = 0, modulo 2^64.
  error(std::string{0, 0, 8, 4} + std::string("\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0", 16));
}

TEST_F(Idx, RefusesAForgedGzipTrailer) {
  // Claims 4 GB in 50 bytes.
  std::string packed = gzip(header_of(0xfffffff0) + std::string(30, '\0'));
  packed.replace(packed.size() - 4, 4, "\xf8\xff\xff\xff");
  EXPECT_TRUE(contains(error(packed), "byte 4"));
}

TEST_F(Idx, DetectsEveryDamagedBitOfAPackedFile) {
  const std::string good = gzip(small_file());
  const IdxArray expected = read(good);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    try {
      // Some bits of the gzip header have no effect.
      EXPECT_EQ(read(bad).values, expected.values) << "bit " << bit;
    } catch (const Error& error) {
      EXPECT_TRUE(error.fault() == Fault::corrupt || error.fault() == Fault::unsupported)
          << error.what();
    }
  }
}

TEST_F(Idx, NamesAFileThatIsNotThereOrIsNoFile) {
  for (const auto& [path, reason] : {std::pair{scratch_.path() / "absent", "No such file"},
                                     std::pair{scratch_.path(), "not a regular file"}}) {
    try {
      read_idx(path);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::system);
      EXPECT_TRUE(contains(error.what(), path.string() + ": " + reason)) << error.what();
    }
  }
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THROW(read_idx(file_), Error) << "and it does not wait for a writer";
}

TEST_F(Idx, RefusesMoreValuesThanThereIsMemoryForBeforeItTakesAny) {
  constexpr std::uintmax_t values = std::uintmax_t{1} << 43;
  const std::string header{0, 0, 8, 2, '\x80', 0, 0, 0, 0, 0, 0x10, 0};
  std::ofstream(file_, std::ios::binary) << header;
  std::error_code too_large;
  std::filesystem::resize_file(file_, header.size() + values, too_large);
  if (too_large) GTEST_SKIP() << "no file may have 8 TiB here";
  try {
    read_idx(file_);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::system);
    const std::string expected = file_.string() + ": its data takes " + std::to_string(values);
    EXPECT_TRUE(contains(error.what(), expected)) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::datasets::image_files_test
