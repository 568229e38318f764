// Moves the state of a training between objects and ranks, without a checkpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"
#include "lockstep/train/training_state.h"

namespace lockstep::train {

// Collective. Errors, on all ranks: unsupported, naming the part, if the ranks' tensors differ in
// name or shape, are parts, or are shared by ranks.
void require_whole(const TrainingState& state, const ProcessGroup& group);

// Shares no memory with `state`.
StateDict copy_of(const StateDict& state);

// Loads `saved`, whole tensors, as if from a checkpoint. Errors: misuse if it does not fit;
// unsupported, with `name`, if the object needs only parts of tensors.
void load(const std::string& name, Stateful& state, const StateDict& saved);

// Called together, by a rank that has the state and one that needs it. Sends contiguous CPU tensors
// without a copy.
// Errors: those of load() and ProcessGroup; mismatch for parts of different names. If one rank
// throws, the other waits until that rank ends, at most for the timeout.
void send_state(const NamedStates& states, const ProcessGroup& group, int to);
void receive_state(const NamedStates& states, const ProcessGroup& group, int from);

}  // namespace lockstep::train
