// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/measure_layer.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/base/time.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/pipeline/split_backward.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/toolkit/plan/allocation_log.h"

namespace lockstep::plan {
namespace {

constexpr int repetitions = 7;  // The same on ranks that communicate.

double seconds_of(const std::function<void()>& act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Other programs lengthen some runs.
double shortest(const std::vector<double>& times) { return *std::ranges::min_element(times); }

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

class Subject {
 public:
  Subject(const std::function<PassedValue(const PassedValue&)>& forward,
          const std::vector<at::Tensor>& parameters, const PassedValue& input, bool needs_gradient)
      : forward_(forward), parameters_(parameters), input_(input), needs_gradient_(needs_gradient) {
    forget();
  }

  void forward() {
    output_ = forward_(input_);
    for (const at::Tensor& tensor : output_.tensors)
      if (tensor.requires_grad()) roots_.push_back(tensor);
  }

  void backward() {
    if (!roots_.empty()) torch::autograd::backward(roots_, gradients_of_roots());
  }

  SplitBackward begin_split() { return {roots_, gradients_of_roots()}; }

  void backward_input(SplitBackward& split) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& tensor : input_.tensors)
      if (tensor.requires_grad()) leaves.push_back(tensor);
    if (!leaves.empty()) split.inputs(leaves);
  }

  bool is_trained() const { return !roots_.empty(); }

  void leave_out_gradients(AllocationLog& log) const {
    for (const at::Tensor& parameter : parameters_)
      if (parameter.grad().defined()) log.leave_out(parameter.grad().storage().data());
  }

  void forget() {
    roots_.clear();
    output_ = {};
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    for (at::Tensor& tensor : input_.tensors)
      tensor = tensor.detach().requires_grad_(needs_gradient_ && tensor.is_floating_point());
  }

  const PassedValue& output() const { return output_; }

 private:
  std::vector<at::Tensor> gradients_of_roots() const {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& root : roots_) gradients.push_back(at::ones_like(root));
    return gradients;
  }

  const std::function<PassedValue(const PassedValue&)>& forward_;
  std::vector<at::Tensor> parameters_;
  PassedValue input_;
  const bool needs_gradient_;
  PassedValue output_;
  std::vector<at::Tensor> roots_;
};

void measure_memory(Subject& subject, LayerSample& sample) {
  {
    AllocationLog log;
    subject.forward();
    sample.kept_bytes = log.live();
    sample.output_bytes = bytes_of(subject.output().tensors);
    subject.backward();
    subject.leave_out_gradients(log);
    sample.peak_bytes = log.peak();
  }
  subject.forget();
  sample.split_peak_bytes = sample.peak_bytes;
  if (sample.backward_weight == 0) return;
  AllocationLog log;
  subject.forward();
  SplitBackward split = subject.begin_split();
  subject.backward_input(split);
  sample.weight_bytes = std::min(log.live(), sample.kept_bytes);
  split.weights();
  subject.leave_out_gradients(log);
  sample.split_peak_bytes = log.peak();
  subject.forget();
}

void measure_times(Subject& subject, LayerSample& sample) {
  std::vector<double> forwards, backwards, inputs, weights;
  for (int i = -1; i < repetitions; ++i) {
    const double forward = seconds_of([&] { subject.forward(); });
    const double backward = seconds_of([&] { subject.backward(); });
    subject.forget();
    // The first run has a cold cache and page faults.
    if (i < 0) continue;
    forwards.push_back(forward);
    backwards.push_back(backward);
  }
  for (int i = 0; i < repetitions; ++i) {
    subject.forward();
    if (!subject.is_trained()) break;
    SplitBackward split = subject.begin_split();
    inputs.push_back(seconds_of([&] { subject.backward_input(split); }));
    weights.push_back(seconds_of([&] { split.weights(); }));
    subject.forget();
  }
  subject.forget();
  sample.forward = shortest(forwards);
  sample.backward = shortest(backwards);
  if (inputs.empty()) return;
  sample.backward_input = shortest(inputs);
  sample.backward_weight = shortest(weights);
}

}  // namespace

double shortest_time(const std::function<void()>& act) {
  std::vector<double> times;
  act();
  for (int i = 0; i < repetitions; ++i) times.push_back(seconds_of(act));
  return shortest(times);
}

MeasuredLayer time_layer(const std::function<PassedValue(const PassedValue&)>& forward,
                         const std::vector<at::Tensor>& parameters, const PassedValue& input,
                         bool needs_gradient) {
  MeasuredLayer measured;
  Subject subject(forward, parameters, input, needs_gradient);
  measure_times(subject, measured.sample);
  subject.forward();
  measured.output = subject.output();
  for (at::Tensor& tensor : measured.output.tensors)
    tensor = tensor.detach().requires_grad_(tensor.requires_grad());
  return measured;
}

MeasuredLayer measure_layer(const std::function<PassedValue(const PassedValue&)>& forward,
                            const std::vector<at::Tensor>& parameters, const PassedValue& input,
                            bool needs_gradient) {
  MeasuredLayer measured = time_layer(forward, parameters, input, needs_gradient);
  Subject subject(forward, parameters, input, needs_gradient);
  measure_memory(subject, measured.sample);
  return measured;
}

double held_input(const std::function<PassedValue(const PassedValue&)>& forward,
                  const PassedValue& input, double kept_bytes) {
  const std::function<PassedValue(const PassedValue&)> of_copy = [&](const PassedValue& value) {
    PassedValue copy{{}, value.structure};
    for (const at::Tensor& tensor : value.tensors) copy.tensors.push_back(tensor.clone());
    return forward(copy);
  };
  Subject subject(of_copy, {}, input, /*needs_gradient=*/true);
  AllocationLog log;
  subject.forward();
  const double held = std::max(0., log.live() - kept_bytes);
  subject.forget();
  return held;
}

void measure_optimizer(LayerPart& part, const std::vector<at::Tensor>& parameters,
                       const PlanOptions& options) {
  part.parameter_bytes = bytes_of(parameters);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : parameters)
    if (parameter.requires_grad()) trained.push_back(parameter);
  part.gradient_bytes = bytes_of(trained);
  for (const at::Tensor& parameter : trained)
    if (is_large_gradient(parameter.nbytes()))
      part.large_gradient_bytes += static_cast<double>(parameter.nbytes());
  if (trained.empty()) return;
  for (at::Tensor& parameter : trained) parameter.mutable_grad() = at::ones_like(parameter);
  const std::unique_ptr<torch::optim::Optimizer> optimizer =
      options.optimizer ? options.optimizer(trained)
                        : std::make_unique<AdamW>(trained, torch::optim::AdamWOptions());
  {
    AllocationLog log;
    optimizer->step();
    part.state_bytes = log.live();
  }
  part.optimizer = shortest_time([&] { optimizer->step(); });
  for (at::Tensor& parameter : trained) parameter.mutable_grad().reset();
}

}  // namespace lockstep::plan

namespace lockstep {

std::vector<double> measure_layers(const LayerList& layers, const at::Tensor& example) {
  const KeptGenerator generator;
  std::vector<double> costs;
  pipeline::PassedValue value = pipeline::pack(example);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const pipeline::Layer layer = layers.make(i);
    plan::MeasuredLayer measured =
        plan::time_layer(layer.forward, layer.module->parameters(), value, i > 0);
    costs.push_back(measured.sample.forward + measured.sample.backward);
    value = std::move(measured.output);
  }
  return costs;
}

}  // namespace lockstep
