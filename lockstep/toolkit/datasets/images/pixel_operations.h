// Pillow's pixel arithmetic, for torchvision's transforms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/toolkit/datasets/images/pixels.h"

namespace lockstep::datasets {

// functional._compute_resized_output_size() of torchvision.
ImageSize size_with_shorter_side(const ImageSize& size, std::int64_t side,
                                 std::int64_t longest = 0);

// Bilinear, with antialiasing, by ATen (accuracy: image_transforms.h).
void resize_pixels(const PixelView& from, const ImageSize& size, Pixels& to);

void flip_pixels(const PixelView& from, bool horizontally, bool vertically, Pixels& to);

// Image.rotate() (PIL/Image.py, libImaging/Geometry.c): around the centre, counter-clockwise.
struct Rotation {
  double degrees = 0;
  bool bilinear = false;
  std::array<std::uint8_t, 3> fill = {};
};
void rotate_pixels(const Pixels& from, const Rotation& rotation, Pixels& to);

// functional.gaussian_blur() of torchvision: in floats, then rounded.
void blur_pixels(const Pixels& from, std::int64_t kernel_size, double sigma, Pixels& to);

// ImageEnhance's Brightness, Contrast and Color (libImaging/Blend.c). Factor 1 changes nothing.
void change_brightness(Pixels& pixels, double factor);
void change_contrast(Pixels& pixels, double factor);
void change_saturation(Pixels& pixels, double factor);

// functional.adjust_hue() of torchvision, by Pillow's HSV (libImaging/Convert.c), in full circles.
void change_hue(Pixels& pixels, double turns);

}  // namespace lockstep::datasets
