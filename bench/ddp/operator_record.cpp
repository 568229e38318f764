// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/operator_record.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>

namespace kineto = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

OperatorRecord::OperatorRecord(std::string folder) : folder_(std::move(folder)) {
  ::setenv("KINETO_LOG_LEVEL", "99", 0);  // It would log that it begins and ends.
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities{settings::ActivityType::CPU};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

OperatorRecord::~OperatorRecord() {
  kineto::disableProfiler()->save(folder_ + "/" + std::to_string(::getpid()) + ".json");
}
