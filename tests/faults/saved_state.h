// A small state that differs at each step, with its "moment" spread over the ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/tensor/state.h"

namespace lockstep::test {

// Keeps loaded data.
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

// Returns the part of rank `rank` of `world_size`.
StateDict state_at(std::int64_t step, int rank = 0, int world_size = 1);

// Compares bit for bit.
bool is_same(const StateDict& a, const StateDict& b);

}  // namespace lockstep::test
