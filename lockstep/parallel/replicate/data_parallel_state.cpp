// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/data_parallel_state.h"

#include "lockstep/tensor/torch_state.h"

namespace lockstep {
namespace {

class DataParallelState final : public Stateful {
 public:
  explicit DataParallelState(DataParallelBase& ddp) : ddp_(ddp) {}

  StateDict state_dict() override { return state_of(ddp_.replica()); }

  StateRequest wanted(const StateDict& saved) override {
    require_fits(ddp_.replica(), saved);
    if (!ddp_.shares_parameters()) return wanted_in_place(ddp_.replica(), saved);
    return ddp_.group().rank() == 0 ? everything(saved) : StateRequest{};
  }

  // Buffers are not shared; edit_parameters() broadcasts them.
  void load_state_dict(StateDict state) override {
    if (!ddp_.shares_parameters()) return copy_into(ddp_.replica(), state);
    ddp_.edit_parameters([&] { copy_into(ddp_.replica(), state); });
  }

 private:
  DataParallelBase& ddp_;
};

}  // namespace

std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp) {
  return std::make_unique<DataParallelState>(ddp);
}

}  // namespace lockstep
