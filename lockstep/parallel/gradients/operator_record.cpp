// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/operator_record.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>

namespace kineto = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

namespace {

// The record's own memory comes to lie between that of tensors, so that malloc needs more. What was
// touched before has no page faults, and train_pytorch.py does the same.
void touch_memory() { torch::ones(240 << 20); }

}  // namespace

OperatorRecord::OperatorRecord(std::string folder) : folder_(std::move(folder)) {
  ::setenv("KINETO_LOG_LEVEL", "99", 0);  // It would log that it begins and ends.
  touch_memory();
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities{settings::ActivityType::CPU};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

OperatorRecord::~OperatorRecord() {
  kineto::disableProfiler()->save(folder_ + "/" + std::to_string(::getpid()) + ".json");
}
