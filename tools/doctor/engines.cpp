// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/engines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/comm/engine/engine.h"
#include "tools/doctor/child.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds limit{20};

EngineState open(const std::string& name) try {
  const Engine& engine = open_engine(name);
  return {.name = name, .path = engine.path, .version = engine.version};
} catch (const std::exception& error) {
  // The report names the engine already.
  const std::string text = error.what();
  const std::string prefix = fmt::format("engine {}: ", name);
  const auto begin = text.find(prefix);
  return {.name = name, .why_not = begin == text.npos ? text : text.substr(begin + prefix.size())};
}

}  // namespace

std::vector<EngineState> examine_engines(const std::string& program) {
  std::vector<EngineState> engines;
  for (const std::string_view each : engine_names()) {
    const std::string name(each);
    const Answer answer = ask({program, "--engine", name}, limit);
    engines.push_back(engine_in(name, answer.out, answer.end));
  }
  return engines;
}

void report_engine(const std::string& name) {
  // Libraries may print greetings to stdout.
  const FileDescriptor out(::dup(STDOUT_FILENO));
  if (!out || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) throw_errno("dup");
  const EngineState engine = open(name);
  const nlohmann::json object{
      {"path", engine.path}, {"version", engine.version}, {"why_not", engine.why_not}};
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const ssize_t written = ::write(out.get(), text.data(), text.size());
  // Destructors of libraries have crashed before; nothing of ours needs them.
  ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

EngineState engine_in(const std::string& name, const std::string& written, const std::string& end) {
  const auto object = nlohmann::json::parse(written, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!object.is_object())
    return {
        .name = name,
        .why_not = fmt::format("a process that opens it {}", end.empty() ? "says nothing" : end)};
  return {
      .name = name, .path = text("path"), .version = text("version"), .why_not = text("why_not")};
}

}  // namespace lockstep::doctor
