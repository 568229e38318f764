// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/input_file.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/toolkit/datasets/deflate.h"
#include "lockstep/toolkit/datasets/mapped_file.h"

namespace lockstep::datasets {
namespace {

// The shortest file (RFC 1952): header 10 bytes, empty block 2, trailer 8.
constexpr std::uint64_t smallest_file = 20;

// Any gzip wrapper, with the largest window (zlib.h, inflateInit2).
constexpr int gzip_window_bits = 15 + 16;

}  // namespace

void require_memory_for(std::string_view file, std::uint64_t bytes) {
  const std::uint64_t available = available_memory();
  if (bytes <= available) return;
  throw Error(Fault::system, std::string(file) + ": its data takes " + std::to_string(bytes) +
                                 " bytes of memory, but this process may take only " +
                                 std::to_string(available) + " more");
}

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(open_to_read(path_)), size_(stamp_of(fd_, name()).size) {}

std::size_t InputFile::read(std::span<std::uint8_t> out) { return read_next(fd_, out, name()); }

void InputFile::seek(std::uint64_t offset) {
  if (::lseek(fd_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) throw_errno(name());
}

bool is_gzip(InputFile& file) {
  std::array<std::uint8_t, 2> magic{};
  const bool same = file.read(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  file.seek(0);
  return same;
}

GzipFile::GzipFile(InputFile file) : file_(std::move(file)), name_(file_.name() + " (unpacked)") {
  if (file_.size() < smallest_file)
    throw_corrupt(file_.name(), file_.size(), "at least 20 bytes of gzip", "the end of the file");

  std::array<std::uint8_t, 4> size{};
  file_.seek(file_.size() - size.size());
  file_.read(size);
  file_.seek(0);
  for (int byte = 3; byte >= 0; --byte) stated_size_ = stated_size_ << 8 | size[byte];

  if (::inflateInit2(&stream_, gzip_window_bits) != Z_OK) throw std::bad_alloc();
}

GzipFile::~GzipFile() { ::inflateEnd(&stream_); }

bool GzipFile::can_hold(std::uint64_t size) const {
  return size / std::uint64_t{most_bytes_for_one} <= file_.size() &&
         static_cast<std::uint32_t>(size) == stated_size_;
}

std::size_t GzipFile::read(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size() && !ended_) {
    if (stream_.avail_in == 0) refill();
    const auto capacity =
        std::min<std::size_t>(out.size() - done, std::numeric_limits<uInt>::max());
    stream_.next_out = out.data() + done;
    stream_.avail_out = static_cast<uInt>(capacity);
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    done += capacity - stream_.avail_out;
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status != Z_OK && status != Z_STREAM_END)
      fail("gzip data", stream_.msg ? stream_.msg : "another format");
    ended_ = status == Z_STREAM_END;
  }
  if (ended_ && stream_.total_in < file_.size()) fail("the end of the file", "more bytes");
  return done;
}

void GzipFile::refill() {
  const std::size_t got = file_.read(packed_);
  if (got == 0) fail("more gzip data", "the end of the file");
  stream_.next_in = packed_.data();
  stream_.avail_in = static_cast<uInt>(got);
}

void GzipFile::fail(std::string_view expected, std::string_view found) const {
  throw_corrupt(file_.name(), stream_.total_in, expected, found);
}

}  // namespace lockstep::datasets
