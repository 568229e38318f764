// A record of LibTorch's operators by LibTorch's own profiler, Kineto; one at a time in a process.
//
// It covers the thread that makes the record and those of autograd.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API OperatorRecord {
 public:
  // Begins it.
  OperatorRecord();

  // Drops the record, unless save() has ended it.
  ~OperatorRecord();
  OperatorRecord(const OperatorRecord&) = delete;
  OperatorRecord& operator=(const OperatorRecord&) = delete;

  // Ends it and writes `file`, in Chrome's trace format. Call it at most once. Errors: Kineto's,
  // which are std::exceptions.
  void save(const std::string& file);

 private:
  bool has_ended_ = false;
};

}  // namespace lockstep
