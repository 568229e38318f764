// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpoint_ranks.h"

#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/values.h"

namespace lockstep::checkpoint {
namespace {

constexpr char succeeded = '+';    // Precedes an action's result.
constexpr char foreign = 'x';      // Precedes another exception's text.
constexpr char first_fault = 'a';  // Plus its Fault; precedes an Error's text.

struct Outcome {
  std::string encoded;
  std::exception_ptr error;
};

Outcome attempt(const std::function<std::string()>& action) {
  try {
    return {succeeded + action(), nullptr};
  } catch (const Error& error) {
    const char fault = static_cast<char>(first_fault + static_cast<int>(error.fault()));
    return {fault + bare_text(error), nullptr};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {foreign + text.substr(0, text.find('\n')), std::current_exception()};
  }
}

void rethrow(const std::string& encoded, int rank) {
  if (encoded.front() == succeeded) return;
  const Fault fault = encoded.front() == foreign
                          ? Fault::aborted
                          : static_cast<Fault>(encoded.front() - first_fault);
  throw Error(fault, "rank " + std::to_string(rank) + ": " + encoded.substr(1));
}

}  // namespace

CheckpointRanks::CheckpointRanks(ProcessGroup group, std::chrono::milliseconds timeout)
    : timeout_(timeout) {
  if (group.size() > 1) group_ = std::move(group);
}

void CheckpointRanks::before_end(const std::shared_ptr<const std::function<void()>>& act) const {
  if (group_) lockstep::before_end(*group_, act);
}

void CheckpointRanks::abort(std::string_view reason) const {
  if (group_) group_->abort(reason);
}

std::vector<std::string> CheckpointRanks::all(std::string_view what,
                                              const std::function<std::string()>& action) const {
  if (!group_) return {action()};
  const Outcome mine = attempt(action);
  std::vector<std::string> outcomes =
      all_gather_bytes(mine.encoded, *group_, {.timeout = timeout_, .label = what});
  if (mine.error) std::rethrow_exception(mine.error);
  for (int rank = 0; rank < size(); ++rank) {
    std::string& outcome = outcomes[static_cast<std::size_t>(rank)];
    rethrow(outcome, rank);
    outcome.erase(0, 1);
  }
  return outcomes;
}

std::string CheckpointRanks::rank_0(std::string_view what,
                                    const std::function<std::string()>& action) const {
  if (!group_) return action();
  const Outcome mine = rank() == 0 ? attempt(action) : Outcome{};
  const std::string outcome =
      broadcast_bytes(mine.encoded, *group_, 0, {.timeout = timeout_, .label = what});
  if (mine.error) std::rethrow_exception(mine.error);
  rethrow(outcome, 0);
  return outcome.substr(1);
}

}  // namespace lockstep::checkpoint
