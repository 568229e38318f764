// A record of LibTorch's operators by its profiler, Kineto, on this thread and autograd's. One at a
// time in a process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API OperatorRecord {
 public:
  OperatorRecord();

  // Drops an unsaved record.
  ~OperatorRecord();
  OperatorRecord(const OperatorRecord&) = delete;
  OperatorRecord& operator=(const OperatorRecord&) = delete;

  // At most once: ends the record and writes `file`, in Chrome's trace format. Errors: Kineto's
  // std::exceptions.
  void save(const std::string& file);

 private:
  bool has_ended_ = false;
};

}  // namespace lockstep
