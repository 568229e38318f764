// Runs one side of bench/data and prints a JSON object with its cost.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "bench/data/sides.h"
#include "lockstep/lockstep.h"

namespace {

using lockstep::bench::SideOptions;
namespace bench = lockstep::bench;

const std::map<std::string, std::function<double(const SideOptions&)>> sides{
    {"in-memory-loader", bench::in_memory_by_loader},
    {"in-memory-torch-data", bench::in_memory_by_torch_data},
    {"images-image-folder", bench::images_by_image_folder},
    {"images-host-cache", bench::images_by_host_cache},
    {"first-batch-image-folder", bench::first_batch_by_image_folder},
    {"host-memory", bench::host_memory_of_cache},
    {"step-loader", bench::step_with_loader},
    {"step-cached", bench::step_with_cached_batch},
    {"tokens-file", bench::tokens_by_file},
    {"tokens-loader", bench::tokens_by_loader}};

}  // namespace

int main(int argc, char** argv) {
  SideOptions options;
  std::string side;
  CLI::App app("Times one way to read samples");
  app.option_defaults()->always_capture_default();
  app.add_option("side", side)->required()->check(CLI::IsMember(sides));
  app.add_option("--batch-size", options.batch_size)->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "of the loader")->check(CLI::NonNegativeNumber);
  app.add_option("--data", options.data, "a file or folder, for sides that read one");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  std::printf("{\"cost\": %.6f}\n", sides.at(side)(options));
}
