// The context of a rank that is a process of a job.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/group/rank_context.h"
#include "lockstep/comm/hosts/hosts_group.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

class JobContext final : public RankContext {
 public:
  // `hosts` is null where shared memory serves all ranks.
  explicit JobContext(std::shared_ptr<HostSession> session,
                      std::shared_ptr<HostsContext> hosts = nullptr);

  void expect_preemption() override;
  void agree_on_preemption() override;

  // Adds which ranks caused the failure and where they were last seen.
  void report_break(Failure failure) override;

  std::shared_ptr<const Activity> activity_of(int rank) const override;
  bool knows_of_loss() const override;
  bool has_lost(int rank) const override;
  void finish() override;
  void leave() override;
  void abandon() override;

 private:
  void report_exit() override;
  Failure reason_for_leaving() const;
  const RemoteRank* remote(int rank) const;
  std::string last_seen(int rank) const;
  void identify(Failure& failure) const;
  void add_last_seen(Failure& failure) const;

  const std::shared_ptr<HostSession> session_;
  const std::shared_ptr<HostsContext> hosts_;
};

}  // namespace lockstep::comm
