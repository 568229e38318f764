// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/survival.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/elastic_steps.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/weight_state.h"
#include "lockstep/train/state_transfer.h"

namespace lockstep {
namespace {

// Larger parts, which compute() must not change, are not copied.
constexpr std::size_t most_copied = std::size_t{64} << 10;  // Bytes.

std::size_t bytes_of(const StateDict& state) {
  std::size_t bytes = 0;
  for (const auto& [key, tensor] : state.tensors) bytes += tensor.data.nbytes();
  return bytes;
}

// Copies of buffers, small parts that are neither modules nor optimizers, and the default
// generator.
class Remembered {
 public:
  // `state` must not change until the next call of observe().
  void observe(const NamedStates& state) {
    forget_objects();
    for (const auto& [name, part] : state) {
      // Each rank has its own generator, which take() copies.
      if (dynamic_cast<RandomGenerators*>(part) != nullptr) continue;
      const StateDict now = part->state_dict();
      for (const auto& [key, tensor] : now.tensors)
        if (tensor.of_rank_0) buffers_.push_back({name, key, tensor.data});
      const bool is_module = dynamic_cast<WeightState*>(part) != nullptr;
      const bool is_optimizer = now.values.contains("param_groups");
      if (!is_module && !is_optimizer && bytes_of(now) <= most_copied)
        small_.emplace_back(name, part);
    }
  }

  void forget_objects() {
    small_.clear();
    buffers_.clear();
  }

  void take() {
    generator_ = default_generator_state();
    for (const auto& [name, part] : small_) states_[name] = train::copy_of(part->state_dict());
    const at::NoGradGuard no_grad;
    for (const Buffer& buffer : buffers_) {
      at::Tensor& copy = copies_[{buffer.part, buffer.key}];
      if (copy.defined() && copy.sizes() == buffer.tensor.sizes())
        copy.copy_(buffer.tensor);
      else
        copy = buffer.tensor.clone();
    }
  }

  // After observe() of the new state. A part that was large before persists, even if small now.
  void restore() const {
    set_default_generator_state(generator_);
    for (const auto& [name, part] : small_)
      if (const auto found = states_.find(name); found != states_.end())
        train::load(name, *part, found->second);
    const at::NoGradGuard no_grad;
    for (const Buffer& buffer : buffers_)
      if (const auto found = copies_.find({buffer.part, buffer.key}); found != copies_.end())
        buffer.tensor.copy_(found->second);
  }

 private:
  struct Buffer {
    std::string part;
    std::string key;
    at::Tensor tensor;  // Shares the buffer's memory.
  };

  std::vector<std::pair<std::string, Stateful*>> small_;
  std::vector<Buffer> buffers_;
  at::Tensor generator_;
  std::map<std::string, StateDict> states_;
  std::map<std::pair<std::string, std::string>, at::Tensor> copies_;
};

}  // namespace

class Survival::Implementation final : private TrainingObjects {
 public:
  Implementation(Setup setup, SurvivalCheckpoints checkpoints, const ElasticOptions& options)
      : setup_(std::move(setup)),
        checkpoints_(std::move(checkpoints)),
        steps_(*this, options, has_checkpoints() ? checkpoints_.every : 0) {
    require(setup_ != nullptr, "Survival: `setup` is empty");
    require(checkpoints_.every > 0, "Survival: `every` must be positive");
    steps_.begin();
  }

  ElasticSteps& steps() { return steps_; }

 private:
  void copy() override { remembered_.take(); }
  void make(ProcessGroup& group, bool restores) override;
  void require_whole(ProcessGroup& group) override { train::require_whole(*state_, group); }
  void send(ProcessGroup& group, int to) override { train::send_state(*state_, group, to); }
  void receive(ProcessGroup& group, int from) override {
    train::receive_state(*state_, group, from);
  }
  bool has_checkpoints() const { return !checkpoints_.directory.empty(); }
  void close_checkpoints() override { checkpointer_.reset(); }
  void save(std::int64_t step) override { checkpointer_->save(step, *state_); }
  std::optional<std::int64_t> load() override;

  const Setup setup_;
  const SurvivalCheckpoints checkpoints_;
  ElasticSteps steps_;
  std::unique_ptr<TrainingState> state_;
  std::optional<Checkpointer> checkpointer_;
  Remembered remembered_;
};

void Survival::Implementation::make(ProcessGroup& group, bool restores) {
  remembered_.forget_objects();
  state_.reset();  // It refers to objects that `setup` replaces.
  auto state = std::make_unique<TrainingState>();
  setup_(group, *state);
  if (has_checkpoints())
    checkpointer_.emplace(checkpoints_.directory, group,
                          CheckpointerOptions{.keep_last = checkpoints_.keep_last});
  else
    remembered_.observe(state->parts());
  if (restores) remembered_.restore();
  state_ = std::move(state);
}

std::optional<std::int64_t> Survival::Implementation::load() {
  if (const auto resumed = checkpointer_->resume(*state_)) return resumed->step;
  return std::nullopt;
}

// --- Survival ------------------------------------------------------------------------------------

Survival::Survival(Setup setup, const ElasticOptions& options)
    : implementation_(
          std::make_unique<Implementation>(std::move(setup), SurvivalCheckpoints(), options)) {}

Survival::Survival(Setup setup, SurvivalCheckpoints checkpoints, const ElasticOptions& options)
    : implementation_(
          std::make_unique<Implementation>(std::move(setup), std::move(checkpoints), options)) {}

Survival::~Survival() = default;

bool Survival::step(const std::function<void()>& compute, const std::function<void()>& apply) {
  return implementation_->steps().step(compute, apply);
}

std::int64_t Survival::steps() const { return implementation_->steps().steps(); }

ProcessGroup& Survival::world() { return implementation_->steps().group(); }

bool Survival::has_left() const { return implementation_->steps().has_left(); }

int Survival::changes() const { return implementation_->steps().changes(); }

double Survival::scale() const { return implementation_->steps().scale(); }

void Survival::finish() { implementation_->steps().finish(); }

}  // namespace lockstep
