// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/operator_record.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace kineto = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

std::set<std::string> threads() {
  std::set<std::string> folders;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    folders.insert(task.path());
  return folders;
}

bool sleeps_or_has_ended(const std::string& thread) {
  std::ifstream in(thread + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return text.empty() || text.find(") S ") != text.npos;
}

// Kineto's first use in a process starts a thread, which then sleeps for minutes. If the process
// exits before that, the thread locks a destroyed mutex, and the exit hangs (LibTorch 2.13). So
// this waits until the thread sleeps.
void prepare(const settings::ProfilerConfig& config,
             const std::set<settings::ActivityType>& activities) {
  const std::set<std::string> earlier = threads();
  kineto::prepareProfiler(config, activities);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (const std::string& thread : threads()) {
    while (!earlier.contains(thread) && !sleeps_or_has_ended(thread) &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

OperatorRecord::OperatorRecord() {
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities{settings::ActivityType::CPU};
  prepare(config, activities);
  kineto::enableProfiler(config, activities);
}

OperatorRecord::~OperatorRecord() {
  if (has_ended_) return;
  try {
    kineto::disableProfiler();
  } catch (const std::exception& error) {
    log(LogLevel::warning, std::string("a record of operators has not ended: ") + error.what());
  }
}

void OperatorRecord::save(const std::string& file) {
  has_ended_ = true;
  kineto::disableProfiler()->save(file);
}

}  // namespace lockstep
