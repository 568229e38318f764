// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/schedule_state.h"

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

// Accesses LibTorch's hidden members: a protected one by derivation, private ones by explicit
// instantiation (C++20, [temp.spec]/6).
struct StepCount : torch::optim::LRScheduler {
  static constexpr unsigned torch::optim::LRScheduler::*member = &StepCount::step_count_;
};

template <class Name, auto Member>
struct Reveal {
  friend constexpr auto member_of(Name) { return Member; }
};

struct Best {
  friend constexpr auto member_of(Best);
};
struct BadEpochs {
  friend constexpr auto member_of(BadEpochs);
};
struct CooldownCounter {
  friend constexpr auto member_of(CooldownCounter);
};
struct LastEpoch {
  friend constexpr auto member_of(LastEpoch);
};

template struct Reveal<Best, &Plateau::best>;
template struct Reveal<BadEpochs, &Plateau::num_bad_epochs>;
template struct Reveal<CooldownCounter, &Plateau::cooldown_counter>;
template struct Reveal<LastEpoch, &Plateau::last_epoch>;

constexpr float Plateau::*best = member_of(Best());
constexpr std::array<std::pair<const char*, int Plateau::*>, 3> counters{
    {{"num_bad_epochs", member_of(BadEpochs())},
     {"cooldown_counter", member_of(CooldownCounter())},
     {"last_epoch", member_of(LastEpoch())}}};

template <std::integral Count>
Count count_in(const StateDict& state, const std::string& name) {
  const std::int64_t count = value_of<std::int64_t>(state, name);
  require(count >= 0 && std::in_range<Count>(count), [&] {
    return "the saved " + name + " of a schedule is not a count: " + std::to_string(count);
  });
  return static_cast<Count>(count);
}

class ScheduleState final : public Stateful {
 public:
  explicit ScheduleState(torch::optim::LRScheduler& schedule) : schedule_(schedule) {}

  StateDict state_dict() override {
    StateDict state;
    state.values.emplace("step_count", std::int64_t{schedule_.*StepCount::member});
    return state;
  }

  StateRequest wanted(const StateDict& saved) override {
    count_in<unsigned>(saved, "step_count");
    return {};
  }

  void load_state_dict(StateDict state) override {
    schedule_.*StepCount::member = count_in<unsigned>(state, "step_count");
  }

 private:
  torch::optim::LRScheduler& schedule_;
};

class PlateauState final : public Stateful {
 public:
  explicit PlateauState(Plateau& schedule) : schedule_(schedule) {}

  StateDict state_dict() override {
    StateDict state;
    state.values.emplace("best", double{schedule_.*best});
    for (const auto& [name, member] : counters)
      state.values.emplace(name, std::int64_t{schedule_.*member});
    return state;
  }

  StateRequest wanted(const StateDict& saved) override {
    value_of<double>(saved, "best");
    for (const auto& [name, member] : counters) count_in<int>(saved, name);
    return {};
  }

  void load_state_dict(StateDict state) override {
    schedule_.*best = static_cast<float>(value_of<double>(state, "best"));
    for (const auto& [name, member] : counters) schedule_.*member = count_in<int>(state, name);
  }

 private:
  Plateau& schedule_;
};

}  // namespace

std::unique_ptr<Stateful> state_of(torch::optim::LRScheduler& schedule) {
  return std::make_unique<ScheduleState>(schedule);
}

std::unique_ptr<Stateful> state_of(Plateau& schedule) {
  return std::make_unique<PlateauState>(schedule);
}

}  // namespace lockstep
