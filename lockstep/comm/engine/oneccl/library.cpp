// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/oneccl/library.h"

#include <cstdlib>
#include <string>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::plugin {
namespace {

void set_by_default(const char* name, const std::string& value) {
  constexpr int keep_what_is_there = 0;
  setenv(name, value.c_str(), keep_what_is_there);
}

void choose_settings(const lockstep_engine_config& config) {
  // Over TCP, without MPI and without a launcher of oneCCL's.
  set_by_default("CCL_ATL_TRANSPORT", "ofi");
  set_by_default("CCL_PROCESS_LAUNCHER", "none");
  set_by_default("FI_PROVIDER", "tcp");
  // In the thread that waits: a thread of oneCCL's own would spin on a core, beside the ranks'.
  set_by_default("CCL_WORKER_OFFLOAD", "0");
  // oneCCL takes ranks with one host name for ranks that share memory, which is not so between
  // containers; and on one host the core has shared memory of its own. So each rank is alone.
  set_by_default("CCL_ATL_SHM", "0");
  set_by_default("CCL_LOCAL_RANK", "0");
  set_by_default("CCL_LOCAL_SIZE", "1");
  // Both the service at which its ranks meet, and their connections.
  set_by_default("CCL_KVS_IFACE", config.interface_name);
  set_by_default("FI_TCP_IFACE", config.interface_name);
  set_by_default("CCL_LOG_LEVEL", "error");
}

}  // namespace

void start_library(const lockstep_engine_config& config) {
  static std::mutex mutex;
  static std::string interface_name;
  const std::lock_guard lock(mutex);
  if (interface_name.empty()) {
    choose_settings(config);
    ccl::init();
    interface_name = config.interface_name;
  }
  if (interface_name != config.interface_name) {
    throw Failed{Fault::unsupported,
                 "oneCCL uses one interface in a process: it was started with " + interface_name +
                     ", not " + config.interface_name};
  }
}

std::unique_lock<std::mutex> Progress::enter() {
  std::unique_lock lock(mutex_);
  if (is_given_up_) {
    throw Failed{Fault::aborted, "an earlier call of oneCCL was given up in this process"};
  }
  return lock;
}

// Never destroyed: oneCCL is not, either.
Progress& progress() {
  static auto* const progress = new Progress;
  return *progress;
}

}  // namespace lockstep::plugin
