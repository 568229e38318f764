// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/saved_choices.h"

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text_file.h"
#include "lockstep/launch/run.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool is_script(const std::string& word) {
  return !word.starts_with('-') && (word.ends_with(".py") || word.ends_with(".sh"));
}

// The path by which choices identify a program.
std::string identity_of(const std::vector<std::string>& program) {
  std::string name = program.front();
  if (!is_script(name))
    for (std::size_t i = 1; i < program.size(); ++i)
      if (is_script(program[i])) {
        name = program[i];
        break;
      }
  const std::string found = find_program(name).path;
  std::error_code missing;
  const fs::path whole = fs::weakly_canonical(found.empty() ? name : found, missing);
  return missing ? name : whole.string();
}

// By host, then by program.
ordered_json all_choices() {
  const std::string file = file_of_choices();
  if (!fs::exists(file)) return ordered_json::object();
  ordered_json all = ordered_json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) throw Error(Fault::corrupt, file + " is not a file of lockstep tune");
  return all;
}

Division division_in(const ordered_json& choice) {
  return {.ranks = choice.at("ranks").get<int>(),
          .threads = choice.at("threads").get<int>(),
          .batch = choice.at("batch").get<int>(),
          .options = choice.at("options").get<std::vector<std::string>>()};
}

}  // namespace

std::string file_of_choices() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/lockstep/tuned.json";
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0')
    throw Error(Fault::system, "HOME is not set, so there is no folder for tuned.json");
  return std::string(home) + "/.config/lockstep/tuned.json";
}

void save_choice(const std::vector<std::string>& program, const Division& division) {
  ordered_json all = all_choices();
  all[host_name()][identity_of(program)] = ordered_json{{"ranks", division.ranks},
                                                        {"threads", division.threads},
                                                        {"batch", division.batch},
                                                        {"options", division.options}};
  const fs::path file = file_of_choices();
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) throw Error(Fault::system, file.parent_path().string() + ": " + error.message());
  write_small_file(file, all.dump(2) + "\n");
}

std::optional<Division> saved_choice(const std::vector<std::string>& program) {
  const ordered_json all = all_choices();
  const auto host = all.find(host_name());
  if (host == all.end() || !host->is_object()) return std::nullopt;
  const auto choice = host->find(identity_of(program));
  if (choice == host->end()) return std::nullopt;
  try {
    return division_in(*choice);
  } catch (const ordered_json::exception&) {
    throw Error(Fault::corrupt, file_of_choices() + " is not a file of lockstep tune");
  }
}

}  // namespace lockstep::tools
