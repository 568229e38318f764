// A record of LibTorch's operators by Kineto, LibTorch's profiler; one at a time in a process.
// Covers this thread and those of autograd.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API OperatorRecord {
 public:
  OperatorRecord();

  // Drops the record unless it was saved.
  ~OperatorRecord();
  OperatorRecord(const OperatorRecord&) = delete;
  OperatorRecord& operator=(const OperatorRecord&) = delete;

  // Ends it and writes `file`, in Chrome's trace format; at most once. Errors: Kineto's
  // std::exceptions.
  void save(const std::string& file);

 private:
  bool has_ended_ = false;
};

}  // namespace lockstep
