// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/oneccl/library.h"

#include <cstring>
#include <string>

#include "lockstep/base/keep_signal_handlers.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::plugin {
namespace {

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
  // Its own choice does not give the same bits every time.
  set_by_default("CCL_ALLREDUCE", "ring");
  // Both the service at which its ranks meet, and their connections.
  set_by_default("CCL_KVS_IFACE", config.interface_name);
  set_by_default("FI_TCP_IFACE", config.interface_name);
  // Among the addresses that this leaves are those of lo, and oneCCL takes the first by name.
  set_by_default("CCL_MNIC", "global");
  set_by_default("CCL_MNIC_NAME", config.interface_name);
  set_by_default("CCL_MNIC_COUNT", "1");
  // It warns of each setting that is not its default.
  set_by_default("CCL_LOG_LEVEL", "error");
  if (std::strchr(config.address, ':') != nullptr) set_by_default("CCL_KVS_PREFER_IPV6", "1");
}

// oneCCL opens its transport with the first communicator of a process, and all members of that one
// must do so at the same time. Members for which it is not the first would be waited for in vain:
// so the first is one that nobody else is in. Never destroyed.
void make_first_communicator() {
  static auto* const kvs = new auto(ccl::create_main_kvs());
  static auto* const first = new auto(ccl::create_communicator(1, 0, *kvs));
  static_cast<void>(first);
}

}  // namespace

void start_library(const lockstep_engine_config& config) {
  static std::mutex mutex;
  static std::string interface_name;
  const std::lock_guard lock(mutex);
  if (interface_name.empty()) {
    choose_settings(config);
    const KeepSignalHandlers keep;
    ccl::init();
    make_first_communicator();
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

namespace {

sigset_t sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

WithoutSigpipe::WithoutSigpipe() {
  const sigset_t set = sigpipe();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

// One that has come meanwhile is for nobody.
WithoutSigpipe::~WithoutSigpipe() {
  const sigset_t set = sigpipe();
  const timespec at_once = {};
  if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace lockstep::plugin
