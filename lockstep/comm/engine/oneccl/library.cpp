// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/oneccl/library.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "lockstep/base/signals.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {
namespace {

void choose_settings(const lockstep_engine_config& config) {
  // Over TCP, without MPI and without oneCCL's own launcher.
  plugin::set_by_default("CCL_ATL_TRANSPORT", "ofi");
  plugin::set_by_default("CCL_PROCESS_LAUNCHER", "none");
  plugin::set_by_default("FI_PROVIDER", "tcp");
  // Works in the waiting thread: a thread of oneCCL's own would spin on a core beside the ranks.
  plugin::set_by_default("CCL_WORKER_OFFLOAD", "0");
  // Each rank is alone on its host: oneCCL assumes that ranks with equal host names share memory,
  // which is wrong between containers.
  plugin::set_by_default("CCL_ATL_SHM", "0");
  plugin::set_by_default("CCL_LOCAL_RANK", "0");
  plugin::set_by_default("CCL_LOCAL_SIZE", "1");
  // oneCCL's own choice does not always give the same bits.
  plugin::set_by_default("CCL_ALLREDUCE", "ring");
  // For the ranks' rendezvous and for their connections.
  plugin::set_by_default("CCL_KVS_IFACE", config.interface_name);
  plugin::set_by_default("FI_TCP_IFACE", config.interface_name);
  // The setting above still leaves lo's addresses, and oneCCL takes the first by name.
  plugin::set_by_default("CCL_MNIC", "global");
  plugin::set_by_default("CCL_MNIC_NAME", config.interface_name);
  plugin::set_by_default("CCL_MNIC_COUNT", "1");
  // oneCCL warns of each non-default setting.
  plugin::set_by_default("CCL_LOG_LEVEL", "error");
  if (std::strchr(config.address, ':') != nullptr)
    plugin::set_by_default("CCL_KVS_PREFER_IPV6", "1");
}

// oneCCL opens its transport with a process's first communicator, on all members at once. The first
// one therefore has only this process. Never destroyed.
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
    throw plugin::Failed{Fault::unsupported,
                         "oneCCL uses one interface in a process: it was started with " +
                             interface_name + ", not " + config.interface_name};
  }
}

std::unique_lock<std::mutex> Progress::enter() {
  std::unique_lock lock(mutex_);
  if (is_aborted_) {
    throw plugin::Failed{Fault::aborted, "an earlier call of oneCCL was aborted in this process"};
  }
  return lock;
}

// Never destroyed, like oneCCL.
Progress& progress() {
  static auto* const progress = new Progress;
  return *progress;
}

}  // namespace lockstep::comm::engines

// Symbols of Intel's compiler runtime and tracer, which oneCCL's archive needs. Null: no tracer.

extern "C" {

void* _intel_fast_memcpy(void* to, const void* from, std::size_t bytes) {
  return std::memcpy(to, from, bytes);
}

void* _intel_fast_memset(void* to, int value, std::size_t bytes) {
  return std::memset(to, value, bytes);
}

void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;
}
