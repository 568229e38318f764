// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/pixel_operations.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::datasets {
namespace {

// [1, channels, height, width] in channels_last layout.
at::Tensor as_tensor(const std::uint8_t* data, const ImageSize& size, std::ptrdiff_t stride) {
  return at::from_blob(const_cast<std::uint8_t*>(data), {1, channels, size.height, size.width},
                       {stride * size.height, 1, stride, channels}, at::kByte);
}

std::uint8_t cut_to_byte(float value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

template <class Change>
void change_pixels(Pixels& pixels, Change change) {
  std::uint8_t* const end = pixels.data() + bytes_of(pixels.size());
  for (std::uint8_t* pixel = pixels.data(); pixel != end; pixel += channels) change(pixel);
}

// Pillow's L: ITU-R 601-2 in units of 1/65536.
std::uint8_t grey_of(const std::uint8_t* pixel) {
  return static_cast<std::uint8_t>(
      (pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U) >> 16);
}

// ImagingBlend(): fractions are truncated.
std::uint8_t blend(std::uint8_t from, std::uint8_t to, float factor) {
  const auto base = static_cast<float>(from);
  return cut_to_byte(base + factor * static_cast<float>(to - from));
}

// Python's int(a * b / c).
std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<std::int64_t>(static_cast<double>(a * b) / static_cast<double>(c));
}

}  // namespace

ImageSize size_with_shorter_side(const ImageSize& size, std::int64_t side, std::int64_t longest) {
  std::int64_t shorter = side;
  std::int64_t longer =
      scaled(side, std::max(size.height, size.width), std::min(size.height, size.width));
  if (longest > 0 && longer > longest) {
    shorter = scaled(longest, shorter, longer);
    longer = longest;
  }
  return size.height <= size.width ? ImageSize{shorter, longer} : ImageSize{longer, shorter};
}

void resize_pixels(const PixelView& from, const ImageSize& size, Pixels& to) {
  to.resize(size);
  at::Tensor out = as_tensor(to.data(), size, size.width * channels);
  at::_upsample_bilinear2d_aa_out(out, as_tensor(from.data, from.size, from.stride),
                                  {size.height, size.width}, /*align_corners=*/false);
  check(out.const_data_ptr<std::uint8_t>() == to.data(), "ATen resized into other memory");
}

void flip_pixels(const PixelView& from, bool horizontally, bool vertically, Pixels& to) {
  to.resize(from.size);
  for (std::int64_t y = 0; y < from.size.height; ++y) {
    const std::uint8_t* const line = from.row(vertically ? from.size.height - 1 - y : y);
    std::uint8_t* const out = to.row(y);
    for (std::int64_t x = 0; x < from.size.width; ++x) {
      const std::uint8_t* pixel = line + (horizontally ? from.size.width - 1 - x : x) * channels;
      std::copy_n(pixel, channels, out + x * channels);
    }
  }
}

// --- Rotation ------------------------------------------------------------------------------------

namespace {

// Maps an output pixel's centre into the input: x' = xx * x + xy * y + x0, and y' alike.
struct Affine {
  double xx, xy, x0;
  double yx, yy, y0;
};

// Python's round(value, 15).
double with_15_decimals(double value) {
  std::array<char, 32> text{};
  const auto written =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 15);
  std::from_chars(text.data(), written.ptr, value);
  return value;
}

Affine affine_of(double degrees, const ImageSize& size) {
  const double angle = -(degrees * (std::numbers::pi / 180));
  const double cosine = with_15_decimals(std::cos(angle));
  const double sine = with_15_decimals(std::sin(angle));
  const double x = static_cast<double>(size.width) / 2;
  const double y = static_cast<double>(size.height) / 2;
  return {.xx = cosine,
          .xy = sine,
          .x0 = cosine * -x + sine * -y + x,
          .yx = -sine,
          .yy = cosine,
          .y0 = -sine * -x + cosine * -y + y};
}

// affine_fixed(): fixed point with 16 fractional bits.
void rotate_to_nearest(const Pixels& from, const Affine& map, Pixels& to) {
  const auto fixed = [](double value) {
    return static_cast<std::int64_t>(std::floor(value * 65536.0 + 0.5));
  };
  const PixelView view = from.view();
  const std::int64_t step_x = fixed(map.xx);
  const std::int64_t step_y = fixed(map.yx);
  std::int64_t line_x = fixed(map.x0 + map.xx * 0.5 + map.xy * 0.5);
  std::int64_t line_y = fixed(map.y0 + map.yx * 0.5 + map.yy * 0.5);
  for (std::int64_t row = 0; row < to.size().height; ++row) {
    std::uint8_t* out = to.row(row);
    std::int64_t at_x = line_x;
    std::int64_t at_y = line_y;
    for (std::int64_t column = 0; column < to.size().width; ++column, out += channels) {
      const std::int64_t x = at_x >> 16;
      const std::int64_t y = at_y >> 16;
      if (x >= 0 && x < view.size.width && y >= 0 && y < view.size.height)
        std::copy_n(view.at(x, y), channels, out);
      at_x += step_x;
      at_y += step_y;
    }
    line_x += fixed(map.xy);
    line_y += fixed(map.yy);
  }
}

double between(double from, double to, double share) { return from + (to - from) * share; }

// bilinear_filter32RGB(): interpolates between four pixels; repeats the border.
void interpolate(const PixelView& view, double x, double y, std::uint8_t* out) {
  x -= 0.5;
  y -= 0.5;
  const double left = std::floor(x);
  const double top = std::floor(y);
  const auto inside = [](double at, std::int64_t size) {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(at), 0, size - 1);
  };
  const std::int64_t x0 = inside(left, view.size.width);
  const std::int64_t x1 = inside(left + 1, view.size.width);
  const std::int64_t y0 = inside(top, view.size.height);
  const std::int64_t y1 = inside(top + 1, view.size.height);
  for (std::int64_t c = 0; c < channels; ++c) {
    const double above = between(view.at(x0, y0)[c], view.at(x1, y0)[c], x - left);
    const double below = between(view.at(x0, y1)[c], view.at(x1, y1)[c], x - left);
    out[c] = static_cast<std::uint8_t>(between(above, below, y - top));
  }
}

void rotate_between(const Pixels& from, const Affine& map, Pixels& to) {
  const PixelView view = from.view();
  const auto width = static_cast<double>(view.size.width);
  const auto height = static_cast<double>(view.size.height);
  for (std::int64_t row = 0; row < to.size().height; ++row) {
    std::uint8_t* out = to.row(row);
    for (std::int64_t column = 0; column < to.size().width; ++column, out += channels) {
      const double at_x = static_cast<double>(column) + 0.5;
      const double at_y = static_cast<double>(row) + 0.5;
      const double x = map.xx * at_x + map.xy * at_y + map.x0;
      const double y = map.yx * at_x + map.yy * at_y + map.y0;
      if (x >= 0 && x < width && y >= 0 && y < height) interpolate(view, x, y, out);
    }
  }
}

// By 90 degrees, for a square image.
void turn(const Pixels& from, bool clockwise, Pixels& to) {
  const std::int64_t last = from.size().width - 1;
  const PixelView view = from.view();
  for (std::int64_t y = 0; y <= last; ++y)
    for (std::int64_t x = 0; x <= last; ++x)
      std::copy_n(clockwise ? view.at(y, last - x) : view.at(last - y, x), channels,
                  to.row(y) + x * channels);
}

}  // namespace

void rotate_pixels(const Pixels& from, const Rotation& rotation, Pixels& to) {
  const ImageSize& size = from.size();
  const double degrees = rotation.degrees - 360 * std::floor(rotation.degrees / 360);
  to.resize(size);
  if (degrees == 0) return to.copy(from.view());
  if (degrees == 180) return flip_pixels(from.view(), true, true, to);
  if ((degrees == 90 || degrees == 270) && size.width == size.height)
    return turn(from, degrees == 270, to);
  change_pixels(to,
                [&](std::uint8_t* pixel) { std::copy_n(rotation.fill.data(), channels, pixel); });
  const Affine map = affine_of(degrees, size);
  if (rotation.bilinear)
    rotate_between(from, map, to);
  else
    rotate_to_nearest(from, map, to);
}

// --- Blur ----------------------------------------------------------------------------------------

namespace {

std::vector<float> gaussian(std::int64_t kernel_size, double sigma) {
  std::vector<float> kernel(static_cast<std::size_t>(kernel_size));
  const auto half = static_cast<double>(kernel_size - 1) / 2;
  double sum = 0;
  for (std::size_t k = 0; k < kernel.size(); ++k) {
    const double distance = (static_cast<double>(k) - half) / sigma;
    const double weight = std::exp(-0.5 * distance * distance);
    kernel[k] = static_cast<float>(weight);
    sum += weight;
  }
  for (float& weight : kernel) weight = static_cast<float>(weight / sum);
  return kernel;
}

// Does not repeat the border.
std::int64_t mirrored(std::int64_t index, std::int64_t size) {
  if (index < 0) return -index;
  return index < size ? index : 2 * (size - 1) - index;
}

// Sums weighted rows around row `y`, from column -half.
void blur_columns(const PixelView& from, const std::vector<float>& kernel, std::int64_t y,
                  std::vector<float>& sums) {
  const auto half = static_cast<std::int64_t>(kernel.size()) / 2;
  const std::int64_t width = from.size.width;
  float* const line = sums.data() + half * channels;
  std::fill_n(line, width * channels, 0.0F);
  for (std::int64_t k = -half; k <= half; ++k) {
    const std::uint8_t* const row = from.row(mirrored(y + k, from.size.height));
    const float weight = kernel[static_cast<std::size_t>(k + half)];
    for (std::int64_t i = 0; i < width * channels; ++i)
      line[i] += weight * static_cast<float>(row[i]);
  }
  for (std::int64_t x = 1; x <= half; ++x) {
    std::copy_n(line + x * channels, channels, line - x * channels);
    std::copy_n(line + (width - 1 - x) * channels, channels, line + (width - 1 + x) * channels);
  }
}

}  // namespace

void blur_pixels(const Pixels& from, std::int64_t kernel_size, double sigma, Pixels& to) {
  const ImageSize& size = from.size();
  const std::int64_t half = kernel_size / 2;
  require(size.width > half && size.height > half, [&] {
    std::string text = "GaussianBlur: a kernel of ";
    text += std::to_string(kernel_size) + " pixels is too large for an image of ";
    return text + std::to_string(size.width) + " x " + std::to_string(size.height);
  });
  to.resize(size);
  const std::vector<float> kernel = gaussian(kernel_size, sigma);
  std::vector<float> sums(static_cast<std::size_t>((size.width + 2 * half) * channels));
  std::vector<float> line(static_cast<std::size_t>(size.width * channels));
  for (std::int64_t y = 0; y < size.height; ++y) {
    blur_columns(from.view(), kernel, y, sums);
    std::ranges::fill(line, 0.0F);
    for (std::size_t k = 0; k < kernel.size(); ++k)
      for (std::size_t i = 0; i < line.size(); ++i) line[i] += kernel[k] * sums[k * channels + i];
    std::ranges::transform(line, to.row(y),
                           [](float value) { return cut_to_byte(std::nearbyint(value)); });
  }
}

// --- Colours -------------------------------------------------------------------------------------

void change_brightness(Pixels& pixels, double factor) {
  const auto share = static_cast<float>(factor);
  change_pixels(pixels, [&](std::uint8_t* pixel) {
    for (std::int64_t c = 0; c < channels; ++c) pixel[c] = blend(0, pixel[c], share);
  });
}

void change_contrast(Pixels& pixels, double factor) {
  std::uint64_t sum = 0;
  change_pixels(pixels, [&](const std::uint8_t* pixel) { sum += grey_of(pixel); });
  const auto count = static_cast<double>(pixels.size().height * pixels.size().width);
  const auto mean = static_cast<std::uint8_t>(static_cast<double>(sum) / count + 0.5);
  const auto share = static_cast<float>(factor);
  change_pixels(pixels, [&](std::uint8_t* pixel) {
    for (std::int64_t c = 0; c < channels; ++c) pixel[c] = blend(mean, pixel[c], share);
  });
}

void change_saturation(Pixels& pixels, double factor) {
  const auto share = static_cast<float>(factor);
  change_pixels(pixels, [&](std::uint8_t* pixel) {
    const std::uint8_t grey = grey_of(pixel);
    for (std::int64_t c = 0; c < channels; ++c) pixel[c] = blend(grey, pixel[c], share);
  });
}

namespace {

struct Hsv {
  std::uint8_t hue = 0;
  std::uint8_t saturation = 0;
  std::uint8_t value = 0;
};

// rgb2hsv_row()
Hsv to_hsv(const std::uint8_t* pixel) {
  const auto [least, most] = std::minmax({pixel[0], pixel[1], pixel[2]});
  if (least == most) return {.value = most};
  const auto range = static_cast<float>(most - least);
  const auto below_most = [&](std::int64_t c) {
    return static_cast<float>(most - pixel[c]) / range;
  };
  double hue = 0;
  if (pixel[0] == most)
    hue = below_most(2) - below_most(1);
  else if (pixel[1] == most)
    hue = static_cast<float>(2.0 + below_most(0) - below_most(2));
  else
    hue = static_cast<float>(4.0 + below_most(1) - below_most(0));
  const auto turns = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  const float saturation = range / static_cast<float>(most);
  return {static_cast<std::uint8_t>(turns * 255.0), static_cast<std::uint8_t>(saturation * 255.0),
          most};
}

// hsv2rgb()
void to_rgb(const Hsv& color, std::uint8_t* pixel) {
  const float value = color.value;
  const auto sector = static_cast<int>(std::floor(static_cast<float>(color.hue) * 6.0 / 255.0));
  const auto rest = static_cast<float>(static_cast<float>(color.hue) * 6.0 / 255.0 - sector);
  const auto saturation = static_cast<float>(color.saturation / 255.0);
  const auto shade = [&](double share) {
    return static_cast<std::uint8_t>(std::round(value * (1.0 - share)));
  };
  const std::uint8_t v = color.value;
  const std::uint8_t p = shade(saturation);
  const std::uint8_t q = shade(saturation * rest);
  const std::uint8_t t = shade(saturation * (1.0 - rest));
  const std::array<std::array<std::uint8_t, channels>, 6> sectors{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::copy_n(sectors[static_cast<std::size_t>(sector % 6)].data(), channels, pixel);
}

}  // namespace

void change_hue(Pixels& pixels, double turns) {
  const auto shift = static_cast<std::uint8_t>(static_cast<int>(turns * 255));
  change_pixels(pixels, [&](std::uint8_t* pixel) {
    Hsv color = to_hsv(pixel);
    color.hue = static_cast<std::uint8_t>(color.hue + shift);
    to_rgb(color, pixel);
  });
}

}  // namespace lockstep::datasets
