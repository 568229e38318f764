// Drives a group's messages: whoever waits for one moves all of them on; a thread of its own does
// while there are asynchronous ones.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/work.h"

namespace lockstep {

class PointToPoint {
 public:
  // `backend` must outlive this. `failed` is told of every Error that breaks the group.
  PointToPoint(Backend& backend, std::function<void(std::exception_ptr)> failed);
  // Those still under way fail with Error(aborted).
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Blocks until `message` is complete. Errors: its own; timeout, which names `what`.
  void run(const std::shared_ptr<Message>& message, const std::string& what, Deadline deadline);

  // The same beside the caller; `done` is called, and dropped, once it is complete.
  Work start(std::shared_ptr<Message> message, std::string what, Deadline deadline,
             std::function<void()> done);

 private:
  struct Started {
    std::shared_ptr<Message> message;
    std::string what;
    Deadline deadline;
    std::function<void()> done;
    std::shared_ptr<Work::State> work;
  };

  void post(std::shared_ptr<Message> message);
  void progress();
  void loop();
  void fail_all(std::exception_ptr error);
  bool settle(Started& started);

  Backend& backend_;
  const std::function<void(std::exception_ptr)> failed_;
  const pid_t pid_;
  std::mutex backend_mutex_;  // One thread at a time moves messages.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Started> started_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
