// A communicator of an engine plugin as a DeviceCommunicator.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/engine/device_communicator.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep {

class PluginCommunicator final : public DeviceCommunicator {
 public:
  // Collective over the members of `config`, which is unused afterwards. Errors: the plugin's.
  PluginCommunicator(const lockstep_engine& engine, const lockstep_engine_config& config);
  ~PluginCommunicator() override;
  PluginCommunicator(const PluginCommunicator&) = delete;
  PluginCommunicator& operator=(const PluginCommunicator&) = delete;

  // Only for engines with a cancel().
  void cancel() override;

  bool supports(Operation operation, DType dtype, ReduceOp op) const;

  void all_reduce(const Buffer& data, ReduceOp op) override;
  void broadcast(const Buffer& data, int root) override;
  void reduce(const Buffer& data, int root, ReduceOp op) override;
  void all_gather(const Buffer& input, const Buffer& output, Counts counts) override;
  void reduce_scatter(const Buffer& input, const Buffer& output, Counts counts,
                      ReduceOp op) override;
  void all_to_all(const Buffer& input, const Buffer& output, Counts send_counts,
                  Counts receive_counts) override;

 private:
  template <class Call>
  void call(Call call) const;

  const lockstep_engine& engine_;
  void* communicator_ = nullptr;
};

}  // namespace lockstep
