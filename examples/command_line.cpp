// SPDX-License-Identifier: Apache-2.0
#include "examples/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lockstep/base/error.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_steps = 1'000'000'000;
constexpr std::int64_t most_samples = 1'000'000;

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::status_known(status)) return status;
  throw CLI::ValidationError(path.string() + ": " + error.message());
}

fs::path absolute(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  if (error) throw CLI::ValidationError(path + ": " + error.message());
  return whole;
}

// The folder need not exist yet.
std::string unless_writable_folder(const std::string& folder) {
  if (folder.empty()) return "a folder is needed";
  fs::path there = absolute(folder);
  while (!fs::exists(status_of(there)) && there.has_relative_path()) there = there.parent_path();
  const bool ok = fs::is_directory(status_of(there)) && ::access(there.c_str(), W_OK | X_OK) == 0;
  return ok ? std::string() : "cannot write in " + there.string();
}

std::string unless_checkpoint(const std::string& folder) {
  if (folder == "auto" || fs::is_directory(status_of(folder))) return {};
  return folder + " is neither a folder nor 'auto'";
}

void add_checkpoint_options(CLI::App& app, Options& options) {
  CLI::Option* folder = app.add_option("--checkpoint", options.checkpoint,
                                       "Save the whole state of the training in this folder")
                            ->check(CLI::Validator(unless_writable_folder, "DIR"));
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Steps between checkpoints; by default only after the last step")
      ->check(CLI::Range(std::int64_t{1}, most_steps))
      ->needs(folder);
  app.add_option("--keep", options.keep, "Number of newest checkpoints to keep; by default all")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(folder);
  app.add_flag("--async", options.async, "Continue training while checkpoints are written")
      ->needs(folder);
  app.add_option("--resume", options.resume,
                 "Continue from this checkpoint, on any number of ranks; auto: from the newest "
                 "whole one in --checkpoint, or from the start without one")
      ->check(CLI::Validator(unless_checkpoint, "auto|DIR"));
}

void add_model_options(CLI::App& app, Options& options, const std::vector<std::string>& models) {
  app.add_option("--model", options.model, "The network")
      ->check(CLI::IsMember(models))
      ->capture_default_str();
  app.add_option("--tp", options.tp,
                 "Ranks that share the layers of one network; for --model vit, whose 4 heads they "
                 "divide")
      ->check(CLI::IsMember({1, 2, 4}))
      ->capture_default_str();
}

void add_options(CLI::App& app, Options& options, const Choices& choices) {
  const CLI::Validator writable(unless_writable, "FILE");
  app.add_option("--data", options.data, "Folder of the dataset, or its name")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training data")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--steps", options.steps,
                 "End training after this number of steps, instead of --epochs")
      ->check(CLI::Range(std::int64_t{1}, most_steps));
  app.add_option("--batch-size", options.batch_size,
                 "Samples per step and rank; by default " + std::to_string(usual_batch_size) +
                     ", or the resumed training's")
      ->check(CLI::Range(std::int64_t{1}, most_samples));
  app.add_option("--lr", options.lr, "Learning rate; a resumed training keeps its own")
      ->check(CLI::Range(0.0, 1000.0))
      ->check(CLI::Validator(unless_number, ""))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of the first weights and of the order of samples")
      ->capture_default_str();
  if (choices.devices.size() > 1)
    app.add_option("--device", options.device, "Device of training: cpu, or a GPU per rank")
        ->check(CLI::IsMember(choices.devices))
        ->capture_default_str();
  if (choices.amp)
    app.add_option(
           "--amp", options.amp,
           "Mixed precision: operators compute in bfloat16 or float16, weights stay float32")
        ->check(CLI::IsMember({"bf16", "fp16"}));
  app.add_option("--threads", options.threads, "Threads per rank; by default OMP_NUM_THREADS")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Write accuracy, speed and loss to this file")
      ->check(writable);
  app.add_option("--save", options.save, "Write the weights to this file, as safetensors")
      ->check(writable);
  app.add_option("--load", options.load, "Start with these weights instead of random ones")
      ->check(CLI::ExistingFile);
  app.add_flag("--print-hash", options.print_hash, "Print the SHA-256 of the final weights");
  app.add_option("--log-samples", options.log_samples,
                 "Append the samples of each step to this file: STEP RANK INDEX...")
      ->check(writable);
  add_checkpoint_options(app, options);
}

[[noreturn]] void end_parsing(const CLI::App& app, const CLI::ParseError& error) {
  std::exit(app.exit(error) == 0 ? 0 : lockstep::exit_usage);
}

}  // namespace

void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error);
  }
}

std::string unless_writable(const std::string& file) {
  if (file.empty()) return "a file name is needed";
  const fs::path folder = absolute(file).parent_path();
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return "cannot write in " + folder.string();
  if (fs::is_directory(status_of(file))) return file + " is a directory";
  return {};
}

std::string unless_number(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number" : "";
}

Options read_command_line(int argc, char** argv, const std::string& description,
                          const std::string& data, const Choices& choices) {
  Options options{.data = data};
  CLI::App app(description);
  const auto name = fs::path(argv[0]).filename().string();
  app.footer("Examples:\n  lockstep run -n 2 " + name + "\n  lockstep run -n 4 " + name +
             " --epochs 5 --lr 5e-4 --save weights.safetensors");
  add_options(app, options, choices);
  if (choices.models.size() > 1) add_model_options(app, options, choices.models);
  try {
    app.parse(argc, argv);
    if (options.tp > 1 && options.model != "vit") throw CLI::RequiresError("--tp", "--model vit");
    if (options.resume == "auto" && options.checkpoint.empty())
      throw CLI::RequiresError("--resume auto", "--checkpoint");
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error);
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
  if (out) fs::rename(aside, file, problem);
  if (out && !problem) return;
  fs::remove(aside, problem);
  throw std::runtime_error("could not write " + file);
}
