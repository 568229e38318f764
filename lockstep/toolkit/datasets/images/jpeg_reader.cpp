// SPDX-License-Identifier: Apache-2.0

// clang-format off
#include <cstdio>  // Required by jpeglib.h.
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#ifndef LIBJPEG_TURBO_VERSION
#error "Lockstep needs libjpeg-turbo: other kinds of libjpeg cannot decode a part of an image"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/toolkit/datasets/images/claimed_size.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "lockstep/toolkit/datasets/images/long_jump.h"

namespace lockstep::datasets {
namespace {

// libjpeg-turbo's fuzzers use this limit. A hostile file's scan costs few bytes, but a pass over
// the image.
constexpr int most_scans = 500;

struct Errors : jpeg_error_mgr {
  LongJump jump;
  // First warning that left all pixels decodable.
  char flaw[JMSG_LENGTH_MAX] = {};
};

LongJump& jump_of(j_common_ptr info) { return static_cast<Errors*>(info->err)->jump; }

[[noreturn]] void fail(j_common_ptr info) {
  char text[JMSG_LENGTH_MAX];
  info->err->format_message(info, text);
  jump_of(info).fail(text);
}

// Whether libjpeg decodes all pixels despite this warning: unneeded bytes before a marker, or
// fields that affect no pixel. Damaged pixel data can cause the same warning. Bytes before a
// restart marker are always pixel data.
bool decodes_all_pixels(const jpeg_error_mgr& error) {
  constexpr int first_restart = 0xd0, last_restart = 0xd7;
  switch (error.msg_code) {
    case JWRN_EXTRANEOUS_DATA:
      return error.msg_parm.i[1] < first_restart || error.msg_parm.i[1] > last_restart;
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_NOT_SEQUENTIAL:
      return true;
    default:
      return false;
  }
}

// Negative levels are warnings, usually of damage that libjpeg replaces by invented pixels.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  Errors& errors = *static_cast<Errors*>(info->err);
  if (!decodes_all_pixels(errors)) fail(info);
  if (errors.flaw[0] == '\0') info->err->format_message(info, errors.flaw);
}

void limit_scans(j_common_ptr info) {
  if (info->is_decompressor == TRUE &&
      reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > most_scans)
    jump_of(info).fail("more than 500 scans");
}

// Ink is inverted, as in Adobe's programs and Pillow.
void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, std::int64_t pixels) {
  for (std::int64_t x = 0; x < pixels; ++x) {
    const int light = from[4 * x + 3];
    for (std::int64_t c = 0; c < channels; ++c) {
      // Convert.c: 255 - ink, minus the rounded product of both divided by 255.
      const int product = (255 - from[4 * x + c]) * light + 128;
      to[channels * x + c] = static_cast<std::uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
}

class JpegReader final : public ImageReader {
 public:
  explicit JpegReader(std::span<const std::uint8_t> bytes) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = fail;
    errors_.emit_message = on_message;
    progress_.progress_monitor = limit_scans;
    try {
      open(bytes);
    } catch (...) {
      jpeg_destroy_decompress(&info_);
      throw;
    }
  }

  ~JpegReader() override { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  const ImageSize& size() const override { return size_; }
  std::string flaw() const override { return errors_.flaw; }

  void read(const Region& region, Pixels& to) override {
    to.resize(region.size);
    line_.resize(static_cast<std::size_t>(size_.width * info_.out_color_components));
    errors_.jump.guard([&] { decode(region, to); });
  }

 private:
  void open(std::span<const std::uint8_t> bytes) {
    errors_.jump.guard([&] {
      jpeg_create_decompress(&info_);
      info_.progress = &progress_;
      jpeg_mem_src(&info_, bytes.data(), bytes.size());
      jpeg_read_header(&info_, TRUE);
    });
    size_ = {info_.image_height, info_.image_width};
    require_possible(size_, bytes.size());
    if (info_.data_precision != 8)
      throw BadImage(std::to_string(info_.data_precision) + " bits for each value, not 8");
    require_held(size_, least_bits() / 8, bytes.size());
    choose_colors();
  }

  // Each block of 8 x 8 values takes at least one bit, except with arithmetic coding.
  std::int64_t least_bits() const {
    std::int64_t blocks = 0;
    for (int c = 0; c < info_.num_components; ++c)
      blocks += static_cast<std::int64_t>(info_.comp_info[c].width_in_blocks) *
                info_.comp_info[c].height_in_blocks;
    return info_.arith_code == TRUE ? 0 : blocks;
  }

  void choose_colors() {
    const bool is_ink = info_.num_components == 4;
    if (info_.num_components != 1 && info_.num_components != 3 && !is_ink)
      throw BadImage(std::to_string(info_.num_components) + " colour components, not 1, 3 or 4");
    info_.out_color_space = is_ink ? JCS_CMYK : JCS_RGB;
    info_.out_color_components = is_ink ? 4 : 3;
  }

  // Runs within guard(): calls only the library.
  void decode(const Region& region, Pixels& to) {
    jpeg_start_decompress(&info_);
    const std::int64_t skipped = skip_columns(region);
    if (region.top > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(region.top));
    for (std::int64_t y = 0; y < region.size.height; ++y) {
      JSAMPROW line = line_.data();
      jpeg_read_scanlines(&info_, &line, 1);
      const std::uint8_t* from = line + skipped * info_.out_color_components;
      if (info_.out_color_components == 4)
        cmyk_to_rgb(from, to.row(y), region.size.width);
      else
        std::memcpy(to.row(y), from, static_cast<std::size_t>(region.size.width * channels));
    }
    if (region.bottom() == size_.height) jpeg_finish_decompress(&info_);
  }

  // Skips columns on both sides, except a block of the coarsest component: smooth upsampling of
  // colours reads neighbours. Returns the columns decoded before the region.
  std::int64_t skip_columns(const Region& region) {
    const std::int64_t margin = static_cast<std::int64_t>(DCTSIZE) * info_.max_h_samp_factor;
    auto first = static_cast<JDIMENSION>(std::max<std::int64_t>(region.left - margin, 0));
    auto count = static_cast<JDIMENSION>(std::min(region.right() + margin, size_.width) - first);
    if (count < info_.output_width) jpeg_crop_scanline(&info_, &first, &count);
    return region.left - first;
  }

  jpeg_decompress_struct info_ = {};
  Errors errors_ = {};
  jpeg_progress_mgr progress_ = {};
  ImageSize size_;
  std::vector<std::uint8_t> line_;
};

}  // namespace

std::unique_ptr<ImageReader> read_jpeg(std::span<const std::uint8_t> bytes) {
  return std::make_unique<JpegReader>(bytes);
}

}  // namespace lockstep::datasets
