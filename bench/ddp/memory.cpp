// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/memory.h"

#include <lockstep/observe/memory_report.h>

#include <iostream>
#include <optional>
#include <string>

namespace {

std::string text_of(const std::optional<std::size_t>& bytes) {
  return bytes ? std::to_string(*bytes) : "-";
}

void print(const char* kind, const std::string& who, const lockstep::MemoryParts& parts) {
  std::cout << "memory " << who << ' ' << kind << " parameters " << parts.parameters
            << " gradients " << parts.gradients << " optimizer_state " << parts.optimizer_state
            << " buckets " << parts.buckets << '\n';
}

void print(const std::string& who, const lockstep::ResidentMemory& resident) {
  std::cout << "memory " << who << " resident process " << resident.process << " parameters "
            << text_of(resident.parameters) << " buckets " << text_of(resident.buckets) << '\n';
}

void print(const lockstep::MemoryReport& report) {
  for (std::size_t i = 0; i < report.resident.size(); ++i) {
    const std::string rank = std::to_string(i);
    print("predicted", rank, report.predicted.ranks[i]);
    print("measured", rank, report.measured.ranks[i]);
    print(rank, report.resident[i]);
  }
  print("predicted", "host", report.predicted.host);
  print("measured", "host", report.measured.host);
  print("host", report.resident_host);
}

}  // namespace

void report_memory(const Workload& work, torch::optim::Optimizer& optimizer) {
  loss_of(work.forward(work.inputs), work.targets).backward();
  optimizer.step();
  const lockstep::MemoryReport report = lockstep::memory_report(*work.ddp, optimizer);
  if (work.ddp->group().rank() == 0) print(report);
}
