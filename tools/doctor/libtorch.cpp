// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/libtorch.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  std::string loader;  // Program that loads programs like this one: ld.so.
  fs::path comm;       // liblockstep_comm.so.
};

int look_at(dl_phdr_info* object, std::size_t, void* result) {
  auto& loaded = *static_cast<Loaded*>(result);
  for (int i = 0; i < object->dlpi_phnum; ++i)
    if (object->dlpi_phdr[i].p_type == PT_INTERP && loaded.loader.empty())
      loaded.loader =
          reinterpret_cast<const char*>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  const fs::path path = object->dlpi_name;
  if (path.filename().string().starts_with("liblockstep_comm.so")) loaded.comm = path;
  return 0;
}

Loaded what_is_loaded() {
  Loaded loaded;
  ::dl_iterate_phdr(look_at, &loaded);
  return loaded;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

LibTorch examine_libtorch(const std::string& built_for, const std::string& library) {
  if (built_for.empty()) return {};
  const fs::path path = what_is_loaded().comm.parent_path() / library;
  const Answer answer = list_needed(path);
  LibTorch torch = libtorch_in(answer.out, built_for);
  if (torch.path.empty() && torch.error.empty())
    torch.error = fmt::format("the loader does not list what {} needs{}{}", path.string(),
                              answer.end.empty() ? "" : ": it ", answer.end);
  if (!torch.path.empty()) torch.version = version_of_libtorch(torch.path);
  return torch;
}

Answer list_needed(const fs::path& library) {
  return ask({what_is_loaded().loader, library.string()}, std::chrono::seconds(10),
             {"LD_TRACE_LOADED_OBJECTS=1"});
}

LibTorch libtorch_in(const std::string& list, const std::string& built_for) {
  LibTorch torch{.built_for = built_for};
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view arrow = " => ";
    const auto begin = line.find_first_not_of(" \t");
    const auto middle = line.find(arrow);
    if (begin == line.npos || middle == line.npos) continue;
    const std::string name = line.substr(begin, middle - begin);
    const std::string where = line.substr(middle + arrow.size());
    if (where == "not found")
      torch.error += (torch.error.empty() ? "there is no " : ", ") + name;
    else if (name == "libtorch_cpu.so")
      torch.path = where.substr(0, where.rfind(" ("));
  }
  return torch;
}

std::string version_of_libtorch(const fs::path& libtorch_cpu) {
  const fs::path folder = libtorch_cpu.parent_path().parent_path();
  if (const std::string version = first_line(folder / "build-version"); !version.empty())
    return version;
  std::ifstream in(folder / "version.py");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view key = "__version__ = '";
    if (!line.starts_with(key)) continue;
    return line.substr(key.size(), line.find('\'', key.size()) - key.size());
  }
  return {};
}

}  // namespace lockstep::doctor
