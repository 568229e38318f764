// Writes what lockstep::ImageFolder makes of a folder, for comparison with torchvision:
//   image_batches list FOLDER             "CLASS-NUMBER PATH" for each image, each ended by a zero
//   image_batches fill FOLDER [STEP...]   one row of floats for each image
//   image_batches speed FOLDER [STEP...]  seconds to fill all rows in batches of 32, twice
// A STEP is a name and its numbers, such as Resize:256 or Blur:3:0.5.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/toolkit/datasets/images/image_folder.h"

namespace {

using namespace lockstep;
using Numbers = std::vector<double>;

std::int64_t whole(double number) { return static_cast<std::int64_t>(number); }

ImageTransform step(const std::string& word) {
  std::istringstream text(word);
  std::string name;
  std::getline(text, name, ':');
  Numbers n;
  for (std::string number; std::getline(text, number, ':');) n.push_back(std::stod(number));
  const std::map<std::string, std::function<ImageTransform()>> steps{
      {"Resize", [&] { return Resize(whole(n.at(0))); }},
      {"ResizeTo",
       [&] {
         return Resize(ImageSize{whole(n.at(0)), whole(n.at(1))});
       }},
      {"ResizeAtMost", [&] { return Resize(whole(n.at(0)), {.max_size = whole(n.at(1))}); }},
      {"CenterCrop",
       [&] {
         return CenterCrop(ImageSize{whole(n.at(0)), whole(n.at(1))});
       }},
      {"RandomResizedCrop",
       [&] {
         return RandomResizedCrop(whole(n.at(0)),
                                  {.scale = {n.at(1), n.at(2)}, .ratio = {n.at(3), n.at(4)}});
       }},
      {"HorizontalFlip", [&] { return RandomHorizontalFlip(n.at(0)); }},
      {"VerticalFlip", [&] { return RandomVerticalFlip(n.at(0)); }},
      {"Rotate",
       [&] {
         return RandomRotation({n.at(0), n.at(0)},
                               {.bilinear = n.at(1) != 0, .fill = {7, 100, 250}});
       }},
      {"Blur",
       [&] {
         return GaussianBlur(whole(n.at(0)), {.sigma = {n.at(1), n.at(1)}});
       }},
      {"Brightness",
       [&] {
         return ColorJitter({.brightness = {n.at(0), n.at(0)}});
       }},
      {"Contrast",
       [&] {
         return ColorJitter({.contrast = {n.at(0), n.at(0)}});
       }},
      {"Saturation",
       [&] {
         return ColorJitter({.saturation = {n.at(0), n.at(0)}});
       }},
      {"Hue",
       [&] {
         return ColorJitter({.hue = {n.at(0), n.at(0)}});
       }},
      {"Normalize", [&] {
         return Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
       }}};
  return steps.at(name)();
}

ImageTransform chain(const std::vector<std::string>& words) {
  ImageTransform all;
  for (const std::string& word : words) all = all | step(word);
  return all;
}

at::Tensor fill(const ImageFolder& folder, std::size_t first, std::size_t count) {
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), first);
  std::vector<std::int64_t> sizes = folder.data_spec().sizes;
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(count));
  const BatchRows rows{.indices = indices,
                       .data = at::empty(sizes, at::kFloat),
                       .target = at::empty({static_cast<std::int64_t>(count)}, at::kLong)};
  folder.fill(rows);
  return rows.data;
}

void write_rows(const ImageFolder& folder) {
  const at::Tensor data = fill(folder, 0, folder.size());
  std::fwrite(data.const_data_ptr(), sizeof(float), static_cast<std::size_t>(data.numel()), stdout);
}

void write_list(const ImageFolder& folder) {
  std::vector<std::size_t> indices(1);
  const at::Tensor data = at::empty({1, 3, 1, 1}, at::kFloat);
  const at::Tensor target = at::empty({1}, at::kLong);
  for (std::size_t i = 0; i < folder.size(); ++i) {
    indices[0] = i;
    folder.fill({.indices = indices, .data = data, .target = target});
    std::cout << target.item<std::int64_t>() << ' ' << folder.path(i).native() << '\0';
  }
}

void measure(const ImageFolder& folder) {
  at::set_num_threads(1);
  const auto start = std::chrono::steady_clock::now();
  constexpr std::size_t batch = 32;
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < folder.size(); i += batch)
      fill(folder, i, std::min(batch, folder.size() - i));
  std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view task = argc > 2 ? argv[1] : "";
  const std::vector<std::string> words(argv + std::min(argc, 3), argv + argc);
  if (task == "list") {
    write_list(ImageFolder(argv[2], {.transform = CenterCrop(1)}));
  } else if (task == "fill") {
    write_rows(ImageFolder(argv[2], {.transform = chain(words)}));
  } else if (task == "speed") {
    measure(ImageFolder(argv[2], {.transform = chain(words)}));
  } else {
    throw std::invalid_argument("see the top of image_batches.cpp");
  }
}
