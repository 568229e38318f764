// A record of LibTorch's operators for bench/operators.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// LibTorch's profiler, Kineto, records operators while an object lives; one at a time. Operators of
// the threads count that begin within it: the one that makes it, and those of autograd.
class OperatorRecord {
 public:
  // Ends by writing a file in `folder`, in Chrome's format for traces.
  explicit OperatorRecord(std::string folder);
  ~OperatorRecord();
  OperatorRecord(const OperatorRecord&) = delete;
  OperatorRecord& operator=(const OperatorRecord&) = delete;

 private:
  const std::string folder_;
};
