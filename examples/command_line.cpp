// SPDX-License-Identifier: Apache-2.0
#include "examples/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace {

constexpr int usage_error = 64;
constexpr std::int64_t most_steps = 1'000'000'000;
constexpr std::int64_t most_samples = 1'000'000;

// Found out before an hour of training, not after it.
std::string unless_writable(const std::string& file) {
  if (file.empty()) return "a file name is needed";
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return "cannot write in " + folder.string();
  if (std::filesystem::is_directory(file)) return file + " is a directory";
  return {};
}

void add_options(CLI::App& app, Options& options) {
  const CLI::Validator writable(unless_writable, "FILE");
  app.add_option("--data", options.data, "Folder of the dataset, or its name")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training data")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "End training after so many steps, not by --epochs")
      ->check(CLI::Range(std::int64_t{1}, most_steps));
  app.add_option("--batch-size", options.batch_size, "Samples in a step, on each rank")
      ->check(CLI::Range(std::int64_t{1}, most_samples))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "Learning rate")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of samples")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Of each rank; by default what OMP_NUM_THREADS says")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Write accuracy, speed and loss there")->check(writable);
  app.add_option("--save", options.save, "Write the weights there, as safetensors")
      ->check(writable);
  app.add_option("--load", options.load, "Start with these weights, not with random ones")
      ->check(CLI::ExistingFile);
  app.add_flag("--print-hash", options.print_hash, "Print the SHA-256 of the final weights");
}

}  // namespace

Options read_command_line(int argc, char** argv, const std::string& description,
                          const std::string& data) {
  Options options{.data = data};
  CLI::App app(description);
  const auto name = std::filesystem::path(argv[0]).filename().string();
  app.footer("Examples:\n  lockstep run -n 2 " + name + "\n  lockstep run -n 4 " + name +
             " --epochs 5 --lr 5e-4 --save weights.safetensors");
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : usage_error);
  }
  return options;
}

void write_json(const Report& report, const std::string& file) {
  const nlohmann::ordered_json json{
      {"accuracy", report.accuracy},     {"samples_per_second", report.samples_per_second},
      {"seconds", report.seconds},       {"loss", report.loss},
      {"world_size", report.world_size}, {"steps", report.steps}};
  const std::string aside = file + ".tmp";
  std::ofstream out(aside);
  out << json.dump(2) << '\n';
  out.close();
  std::error_code problem;
  if (out) std::filesystem::rename(aside, file, problem);
  if (out && !problem) return;
  std::filesystem::remove(aside, problem);
  throw std::runtime_error("could not write " + file);
}
