// Lockstep's side of schedules_test.py: runs each of its schedules.
//   schedule_trace STATES RESULT OUR_STATES
// RESULT gets, for each case, the rates and momenta of all param groups after each step, and those
// after a resume from Python's state in the middle. STATES and OUR_STATES hold these states:
//   CASE NAME TYPE VALUE...
// TYPE is i, d, b, s or v; doubles are hexadecimal. "groups" are the rates and momenta.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/toolkit/schedules/cyclic_schedules.h>
#include <lockstep/toolkit/schedules/lr_scheduler.h>
#include <lockstep/toolkit/schedules/reduce_lr_on_plateau.h>
#include <lockstep/toolkit/schedules/scaled_learning_rate.h>
#include <lockstep/toolkit/schedules/schedules.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace lockstep;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

constexpr std::int64_t all_steps = 10'000, middle = 5'000, edited = 777;
constexpr std::size_t groups = 3;

// --- Schedules -----------------------------------------------------------------------------------

using Parts = std::vector<std::unique_ptr<LRScheduler>>;

struct Stepped {
  Parts parts;  // The last one is stepped.
  std::unique_ptr<ReduceLROnPlateau> plateau;

  void step(std::int64_t i) {
    if (plateau)
      plateau->step(1.0 / static_cast<double>(1 + i % 3000) +
                    static_cast<double>(i * 7919 % 1000) / 4000.0);
    else
      parts.back()->step();
  }

  Stateful& state() {
    if (plateau) return *plateau;
    return *parts.back();
  }
};

template <class Schedule, class... Arguments>
Stepped alone(Optimizer& optimizer, Arguments... arguments) {
  Stepped stepped;
  stepped.parts.push_back(std::make_unique<Schedule>(optimizer, std::move(arguments)...));
  return stepped;
}

std::vector<LRScheduler*> pointers(const Parts& parts) {
  std::vector<LRScheduler*> all;
  for (const auto& part : parts) all.push_back(part.get());
  return all;
}

template <class Schedule, class... Arguments>
void add(Parts& parts, Optimizer& optimizer, Arguments... arguments) {
  parts.push_back(std::make_unique<Schedule>(optimizer, std::move(arguments)...));
}

Stepped in_sequence(Optimizer& optimizer, Parts parts, std::vector<std::int64_t> milestones) {
  const auto children = pointers(parts);
  add<SequentialLR>(parts, optimizer, children, std::move(milestones));
  return {.parts = std::move(parts), .plateau = nullptr};
}

Parts warm_up_and_cosine(Optimizer& optimizer) {
  Parts parts;
  add<LinearLR>(parts, optimizer, LinearLROptions{.start_factor = 1e-3, .total_iters = 50});
  add<CosineAnnealingLR>(parts, optimizer, CosineAnnealingLROptions{.T_max = 900});
  return parts;
}

Parts constant_and_exponential(Optimizer& optimizer) {
  Parts parts;
  add<ConstantLR>(parts, optimizer, ConstantLROptions{.factor = 0.2, .total_iters = 350});
  add<ExponentialLR>(parts, optimizer, ExponentialLROptions{.gamma = 0.999});
  return parts;
}

Stepped all_in_sequence(Optimizer& o) {
  Parts parts = constant_and_exponential(o);
  add<MultiStepLR>(parts, o, MultiStepLROptions{.milestones = {0, 7, 7, 90}, .gamma = 0.7});
  add<StepLR>(parts, o, StepLROptions{.step_size = 40, .gamma = 0.9});
  add<PolynomialLR>(parts, o, PolynomialLROptions{.total_iters = 500, .power = 0.5});
  add<LinearLR>(parts, o, LinearLROptions{.end_factor = 0.9, .total_iters = 600});
  add<MultiplicativeLR>(parts, o, [](std::int64_t e) { return e % 2 == 0 ? 1.25 : 0.75; });
  add<CosineAnnealingLR>(parts, o, CosineAnnealingLROptions{.T_max = 77, .eta_min = 1e-4});
  add<CosineAnnealingWarmRestarts>(parts, o,
                                   CosineAnnealingWarmRestartsOptions{.T_0 = 10, .T_mult = 3});
  add<SWALR>(parts, o, SWALROptions{.swa_lr = 0.03, .anneal_epochs = 100});
  add<LambdaLR>(parts, o, [](std::int64_t e) { return 1 / (1 + 0.25 * static_cast<double>(e)); });
  add<CyclicLR>(parts, o, CyclicLROptions{.base_lr = 0.01, .max_lr = 0.3, .step_size_up = 30});
  add<OneCycleLR>(parts, o, OneCycleLROptions{.max_lr = 0.4, .total_steps = 2000});
  return in_sequence(o, std::move(parts),
                     {800, 1600, 2400, 3200, 4000, 4800, 5600, 6400, 7200, 8000, 8800, 9600});
}

Stepped nested(Optimizer& optimizer) {
  Stepped stepped = in_sequence(optimizer, warm_up_and_cosine(optimizer), {50});
  add<PolynomialLR>(stepped.parts, optimizer, PolynomialLROptions{.total_iters = 4000});
  LRScheduler* const last = stepped.parts.back().get();
  LRScheduler* const first = stepped.parts[2].get();
  add<SequentialLR>(stepped.parts, optimizer, std::vector{first, last},
                    std::vector<std::int64_t>{700});
  return stepped;
}

Stepped chained(Parts parts, std::vector<LRScheduler*> children) {
  parts.push_back(std::make_unique<ChainedScheduler>(std::move(children)));
  return {.parts = std::move(parts), .plateau = nullptr};
}

Stepped chained_sequence(Optimizer& optimizer) {
  Parts parts = in_sequence(optimizer, warm_up_and_cosine(optimizer), {50}).parts;
  add<StepLR>(parts, optimizer, StepLROptions{.step_size = 1000, .gamma = 0.5});
  const std::vector<LRScheduler*> children{parts[2].get(), parts[3].get()};
  return chained(std::move(parts), children);
}

Stepped sequence_of_chain(Optimizer& optimizer) {
  Parts parts = constant_and_exponential(optimizer);
  const auto children = pointers(parts);
  Stepped chain = chained(std::move(parts), children);
  add<CosineAnnealingLR>(chain.parts, optimizer, CosineAnnealingLROptions{.T_max = 3000});
  const std::vector both{chain.parts[2].get(), chain.parts[3].get()};
  add<SequentialLR>(chain.parts, optimizer, both, std::vector<std::int64_t>{400});
  return chain;
}

Stepped plateau_of(Optimizer& optimizer, const ReduceLROnPlateauOptions& options) {
  return {.parts = {}, .plateau = std::make_unique<ReduceLROnPlateau>(optimizer, options)};
}

double as_double(std::int64_t epoch) { return static_cast<double>(epoch); }

using Make = std::function<Stepped(Optimizer&)>;

const std::map<std::string, Make> cases{
    {"lambda",
     [](Optimizer& o) {
       return alone<LambdaLR>(
           o, std::vector<LRFactor>{[](auto e) { return 1 / (1 + 0.01 * as_double(e)); },
                                    [](auto e) { return std::pow(0.999, as_double(e)); },
                                    [](auto e) { return as_double(e % 7); }});
     }},
    {"multiplicative",
     [](Optimizer& o) {
       return alone<MultiplicativeLR>(o, [](auto e) { return e % 100 < 50 ? 1.001 : 0.998; });
     }},
    {"step",
     [](Optimizer& o) {
       return alone<StepLR>(o, StepLROptions{300, 0.9});
     }},
    {"multi_step",
     [](Optimizer& o) {
       return alone<MultiStepLR>(
           o,
           MultiStepLROptions{.milestones = {9000, 10, 500, 500, 500, 4999, 6000}, .gamma = 0.3});
     }},
    {"constant",
     [](Optimizer& o) {
       return alone<ConstantLR>(o, ConstantLROptions{0.7, 6000});
     }},
    {"constant_defaults", [](Optimizer& o) { return alone<ConstantLR>(o); }},
    {"linear",
     [](Optimizer& o) {
       return alone<LinearLR>(o, LinearLROptions{0.001, 0.7, 7000});
     }},
    {"linear_defaults", [](Optimizer& o) { return alone<LinearLR>(o); }},
    {"exponential",
     [](Optimizer& o) { return alone<ExponentialLR>(o, ExponentialLROptions{0.9993}); }},
    {"polynomial",
     [](Optimizer& o) {
       return alone<PolynomialLR>(o, PolynomialLROptions{9000, 1.7});
     }},
    {"cosine",
     [](Optimizer& o) {
       return alone<CosineAnnealingLR>(o, CosineAnnealingLROptions{1700, 1e-5});
     }},
    {"cosine_short",
     [](Optimizer& o) { return alone<CosineAnnealingLR>(o, CosineAnnealingLROptions{3}); }},
    {"restarts",
     [](Optimizer& o) {
       return alone<CosineAnnealingWarmRestarts>(o,
                                                 CosineAnnealingWarmRestartsOptions{100, 2, 1e-4});
     }},
    {"restarts_even",
     [](Optimizer& o) {
       return alone<CosineAnnealingWarmRestarts>(o, CosineAnnealingWarmRestartsOptions{77});
     }},
    {"swa",
     [](Optimizer& o) {
       return alone<SWALR>(o, SWALROptions{.swa_lr = {0.01, 0.02, 0.03}, .anneal_epochs = 6000});
     }},
    {"swa_linear",
     [](Optimizer& o) {
       return alone<SWALR>(
           o, SWALROptions{
                  .swa_lr = 0.2, .anneal_epochs = 50, .anneal_strategy = AnnealStrategy::linear});
     }},
    {"swa_at_once",
     [](Optimizer& o) { return alone<SWALR>(o, SWALROptions{.swa_lr = 0.2, .anneal_epochs = 0}); }},
    {"cyclic",
     [](Optimizer& o) {
       return alone<CyclicLR>(o, CyclicLROptions{.base_lr = {0.001, 0.002, 0.003},
                                                 .max_lr = {0.1, 0.3, 0.7},
                                                 .step_size_up = 150,
                                                 .step_size_down = 70});
     }},
    {"cyclic_adam",
     [](Optimizer& o) {
       return alone<CyclicLR>(o, CyclicLROptions{.base_lr = 0.001,
                                                 .max_lr = 0.6,
                                                 .step_size_up = 333,
                                                 .mode = CyclicMode::triangular2,
                                                 .base_momentum = 0.7,
                                                 .max_momentum = {0.9, 0.95, 0.99}});
     }},
    {"cyclic_exp",
     [](Optimizer& o) {
       return alone<CyclicLR>(
           o, CyclicLROptions{
                  .base_lr = 0.001, .max_lr = 0.6, .mode = CyclicMode::exp_range, .gamma = 0.9995});
     }},
    {"cyclic_own",
     [](Optimizer& o) {
       return alone<CyclicLR>(
           o, CyclicLROptions{.base_lr = 0.001,
                              .max_lr = 0.6,
                              .step_size_up = 90,
                              .scale_fn = [](double x) { return 1 / (1 + 0.1 * x); },
                              .scale_mode = CyclicScale::iterations,
                              .cycle_momentum = false});
     }},
    {"one_cycle",
     [](Optimizer& o) {
       return alone<OneCycleLR>(
           o, OneCycleLROptions{.max_lr = {0.1, 0.2, 0.3}, .epochs = 100, .steps_per_epoch = 100});
     }},
    {"one_cycle_adam",
     [](Optimizer& o) {
       return alone<OneCycleLR>(o, OneCycleLROptions{.max_lr = 0.3,
                                                     .total_steps = 10'007,
                                                     .pct_start = 0.37,
                                                     .anneal_strategy = AnnealStrategy::linear,
                                                     .div_factor = 7,
                                                     .final_div_factor = 130,
                                                     .three_phase = true});
     }},
    {"one_cycle_rates",
     [](Optimizer& o) {
       return alone<OneCycleLR>(
           o,
           OneCycleLROptions{
               .max_lr = 0.3, .total_steps = 10'000, .cycle_momentum = false, .three_phase = true});
     }},
    {"sequence", [](Optimizer& o) { return in_sequence(o, warm_up_and_cosine(o), {50}); }},
    {"sequence_from_second",
     [](Optimizer& o) { return in_sequence(o, warm_up_and_cosine(o), {0}); }},
    {"sequence_of_all_adam", all_in_sequence},
    {"sequence_in_sequence", nested},
    {"chain",
     [](Optimizer& o) {
       Parts parts = constant_and_exponential(o);
       const auto children = pointers(parts);
       return chained(std::move(parts), children);
     }},
    {"chain_with_sequence", chained_sequence},
    {"sequence_with_chain", sequence_of_chain},
    {"plateau", [](Optimizer& o) { return plateau_of(o, {}); }},
    {"plateau_of_maxima",
     [](Optimizer& o) {
       return plateau_of(o, {.mode = PlateauMode::max,
                             .factor = 0.9,
                             .patience = 100,
                             .threshold = 0.01,
                             .threshold_mode = ThresholdMode::abs,
                             .cooldown = 30,
                             .min_lr = {1e-4, 1e-3, 1e-5},
                             .eps = 1e-4});
     }},
    {"plateau_relative",
     [](Optimizer& o) {
       return plateau_of(o, {.mode = PlateauMode::max, .factor = 0.99, .patience = 5});
     }},
    {"plateau_absolute",
     [](Optimizer& o) {
       return plateau_of(o, {.factor = 0.99, .patience = 7, .threshold_mode = ThresholdMode::abs});
     }},
    {"scaled",
     [](Optimizer& o) {
       return alone<ScaledLearningRate>(
           o,
           ScaledLearningRateOptions{.base_batch = 256, .global_batch = 768, .warmup_steps = 6000});
     }},
};

// --- Optimizers ----------------------------------------------------------------------------------

template <class Plain, class Options>
std::unique_ptr<Optimizer> made() {
  std::vector<OptimizerParamGroup> all;
  for (const double rate : {0.1, 0.05, 0.003})
    all.emplace_back(std::vector{at::zeros({1}).requires_grad_()}, std::make_unique<Options>(rate));
  return std::make_unique<Plain>(all, Options(1.0));
}

std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  if (name.ends_with("_adam")) return made<Adam, torch::optim::AdamOptions>();
  return made<SGD, torch::optim::SGDOptions>();
}

std::vector<double> values_of(Optimizer& optimizer) {
  std::vector<double> rates, momenta;
  for (auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
    if (const auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&group.options()))
      momenta.push_back(std::get<0>(adam->betas()));
    else
      momenta.push_back(static_cast<torch::optim::SGDOptions&>(group.options()).momentum());
  }
  rates.insert(rates.end(), momenta.begin(), momenta.end());
  return rates;
}

void set_values(Optimizer& optimizer, const std::vector<double>& values) {
  for (std::size_t i = 0; i < groups; ++i) {
    auto& options = optimizer.param_groups()[i].options();
    options.set_lr(values.at(i));
    const double momentum = values.at(groups + i);
    if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(&options))
      adam->betas({momentum, 0.999});
    else
      static_cast<torch::optim::SGDOptions&>(options).momentum(momentum);
  }
}

// --- States --------------------------------------------------------------------------------------

using States = std::map<std::string, StateValues>;

StateValue value_in(const std::string& type, std::istream& words) {
  std::vector<double> numbers;
  std::string word;
  while (words >> word) {
    if (type == "s") return word;
    if (type == "i") return static_cast<std::int64_t>(std::stoll(word));
    numbers.push_back(std::strtod(word.c_str(), nullptr));
  }
  if (type == "b") return numbers.at(0) != 0;
  if (type == "d") return numbers.at(0);
  return numbers;
}

States read_states(const char* path) {
  States states;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, member, type;
    words >> name >> member >> type;
    states[name].emplace(member, value_in(type, words));
  }
  return states;
}

void write_state(std::ostream& file, const std::string& name, const StateValues& values) {
  file << std::hexfloat;
  for (const auto& [member, value] : values) {
    file << name << ' ' << member << ' ' << "bidsv"[value.index()];
    if (const auto* numbers = std::get_if<std::vector<double>>(&value))
      for (const double number : *numbers) file << ' ' << number;
    else
      std::visit(
          [&]<class T>(const T& plain) {
            if constexpr (!std::is_same_v<T, std::vector<double>>) file << ' ' << plain;
          },
          value);
    file << '\n';
  }
}

// --- Runs ----------------------------------------------------------------------------------------

at::Tensor whole_run(const std::string& name, const Make& make, std::ostream& states) {
  const std::unique_ptr<Optimizer> optimizer = optimizer_of(name);
  Stepped schedule = make(*optimizer);
  std::vector<double> trace = values_of(*optimizer);
  for (std::int64_t i = 1; i <= all_steps; ++i) {
    auto& second = optimizer->param_groups()[1].options();
    if (i == edited) second.set_lr(second.get_lr() * 0.5);
    schedule.step(i);
    const std::vector<double> values = values_of(*optimizer);
    trace.insert(trace.end(), values.begin(), values.end());
    if (i == middle) write_state(states, name, schedule.state().state_dict().values);
  }
  return at::tensor(trace, at::kDouble);
}

at::Tensor resumed_run(const std::string& name, const Make& make, StateValues saved) {
  const std::unique_ptr<Optimizer> optimizer = optimizer_of(name);
  Stepped schedule = make(*optimizer);
  set_values(*optimizer, std::get<std::vector<double>>(saved.extract("groups").mapped()));
  const StateDict state{.tensors = {}, .values = std::move(saved)};
  schedule.state().wanted(state);
  schedule.state().load_state_dict(state);
  std::vector<double> trace;
  for (std::int64_t i = middle + 1; i <= all_steps; ++i) {
    schedule.step(i);
    const std::vector<double> values = values_of(*optimizer);
    trace.insert(trace.end(), values.begin(), values.end());
  }
  return at::tensor(trace, at::kDouble);
}

void run(const char* theirs, const char* result, const char* ours) {
  const States states = read_states(theirs);
  std::ofstream our_states(ours);
  NamedTensors traces;
  for (const auto& [name, make] : cases) {
    traces.emplace_back(name, whole_run(name, make, our_states));
    traces.emplace_back(name + ".resumed", resumed_run(name, make, states.at(name)));
  }
  save_safetensors(result, traces);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
