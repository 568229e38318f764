// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_runtime.h"

#include <memory>
#include <thread>
#include <utility>

#include "lockstep/base/thread.h"
#include "lockstep/comm/init_group.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {
namespace {

class RealRuntime final : public ElasticRuntime {
 public:
  Clock::time_point now() override { return Clock::now(); }
  void sleep_for(std::chrono::milliseconds time) override { std::this_thread::sleep_for(time); }

  std::function<void()> start(std::function<void()> body) override {
    auto thread = std::make_shared<Thread>(start_thread(std::move(body)));
    return [thread] { thread->join(); };
  }

  ProcessGroup make_group(const InitOptions& options,
                          std::chrono::milliseconds call_timeout) override {
    return init_group(options, call_timeout);
  }

  void keep_preemption_signals() override { lockstep::keep_preemption_signals(); }
  bool preemption_signalled() override { return lockstep::preemption_signalled(); }
};

}  // namespace

ElasticRuntime& elastic_runtime() {
  static RealRuntime runtime;
  return runtime;
}

Deadline ElasticRuntime::in(std::chrono::milliseconds time) {
  const auto begin = now();
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(no_deadline - begin);
  return time < most ? begin + time : no_deadline;
}

}  // namespace lockstep::comm
