// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/operator_record.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <exception>
#include <set>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace kineto = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

}  // namespace

OperatorRecord::OperatorRecord() {
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities{settings::ActivityType::CPU};
  kineto::prepareProfiler(config, activities);
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
