// A small state that is another one at each step, whose "moment" is spread over the ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/tensor/state.h"

namespace lockstep::test {

// Keeps what is loaded.
class SavedState : public Stateful {
 public:
  SavedState() = default;
  explicit SavedState(StateDict state) : state_(std::move(state)) {}

  StateDict state_dict() override { return state_; }
  StateRequest wanted(const StateDict& saved) override { return everything(saved); }
  void load_state_dict(StateDict state) override { state_ = std::move(state); }

  const StateDict& state() const { return state_; }

 private:
  StateDict state_;
};

// What rank `rank` of `world_size` has of it.
StateDict state_at(std::int64_t step, int rank = 0, int world_size = 1);

// Bit for bit.
bool is_same(const StateDict& a, const StateDict& b);

}  // namespace lockstep::test
