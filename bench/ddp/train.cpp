// Lockstep's side of bench.py: training steps on random data. train_pytorch.py does the same.

// SPDX-License-Identifier: Apache-2.0
#include <c10/core/impl/VirtualGuardImpl.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/optim/mixed_precision.h>
#include <lockstep/parallel/deterministic/deterministic_data_parallel.h>
#include <lockstep/parallel/gradients/operator_record.h>
#include <lockstep/parallel/shared_parameters/shared_optimizer.h>
#include <sys/resource.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/ddp/memory.h"
#include "bench/ddp/optimizer.h"
#include "bench/ddp/options.h"
#include "bench/ddp/workload.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Times {
  Clock::duration whole{};
  Clock::duration forward{};
  Clock::duration backward{};  // With the loss.
  Clock::duration optimizer{};
  std::chrono::nanoseconds copy{};  // Copying gradients into buckets.
  lockstep::StepTimes phases;       // Lockstep's own.
  Clock::duration processor{};      // CPU time of all threads.
  long page_faults = 0;
};

rusage usage() {
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  return own;
}

Clock::duration processor_of(const rusage& used) {
  const auto time = [](const timeval& part) {
    return std::chrono::seconds(part.tv_sec) + std::chrono::microseconds(part.tv_usec);
  };
  return time(used.ru_utime) + time(used.ru_stime);
}

void wait_for_start(const Options& options, const std::optional<lockstep::ProcessGroup>& world) {
  if (world) world->barrier();
  if (!options.on_cue) return;
  std::cout << "ready" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) throw std::runtime_error("no cue came");
}

// Waits until the model's device has run all kernels; a CPU has none that run later.
void synchronize(const Workload& work) {
  const at::Device device = work.inputs.device();
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void step(const Workload& work, const Options& options, torch::optim::Optimizer& optimizer,
          Times& times) {
  const bool in_microbatches = options.deterministic > 0;
  const auto begun = Clock::now();
  auto forwarded = begun;  // With microbatches, forward and backward passes alternate.
  const auto loss = [&](const torch::Tensor& inputs, const torch::Tensor& targets) {
    const lockstep::Autocast mixed_precision(work.inputs.device().type(), torch::kBFloat16,
                                             options.amp);
    const torch::Tensor logits = work.forward(inputs);
    if (!in_microbatches) forwarded = Clock::now();
    return loss_of(logits, targets);
  };
  if (in_microbatches)
    dynamic_cast<lockstep::DeterministicBase&>(*work.ddp).train_microbatches(
        0, [&](const lockstep::GlobalMicrobatch& part) {
          return loss(part.of(work.inputs), part.of(work.targets));
        });
  else
    loss(work.inputs, work.targets).backward();
  const auto differentiated = Clock::now();
  optimizer.step();
  optimizer.zero_grad();
  times.forward += forwarded - begun;
  times.backward += differentiated - forwarded;
  times.optimizer += Clock::now() - differentiated;
}

// Allocates pages first, to avoid page faults, as train_pytorch.py does. The record's own memory
// lies between that of tensors, so malloc needs more.
void touch_memory() { torch::ones(240 << 20); }

// Runs as many further steps, and writes their operators to a file for bench/operators.
void record_operators(const Workload& work, const Options& options,
                      torch::optim::Optimizer& optimizer) {
  ::setenv("KINETO_LOG_LEVEL", "99", 0);  // Prevents messages about its start and end.
  touch_memory();
  lockstep::OperatorRecord record;
  Times ignored;
  for (int i = 0; i < options.steps; ++i) step(work, options, optimizer, ignored);
  record.save(options.operators + "/" + std::to_string(::getpid()) + ".json");
}

Times train(const Options& options, const std::optional<lockstep::ProcessGroup>& world) {
  const Workload work = make_workload(options, world);
  const auto optimizer = make_optimizer(work, options, world);
  Times warmup;
  for (int i = 0; i < options.warmup; ++i) step(work, options, *optimizer, warmup);

  synchronize(work);
  wait_for_start(options, world);
  const auto copied = [&] {
    return work.ddp ? work.ddp->stats().times.copy : std::chrono::nanoseconds(0);
  };
  const auto copied_before = copied();
  const lockstep::StepTimes before = lockstep::step_times();
  const rusage usage_before = usage();
  const auto started = Clock::now();
  Times times;
  for (int i = 0; i < options.steps; ++i) step(work, options, *optimizer, times);
  synchronize(work);
  if (world) world->barrier();
  times.whole = Clock::now() - started;
  const rusage used = usage();
  times.processor = processor_of(used) - processor_of(usage_before);
  times.page_faults = used.ru_minflt - usage_before.ru_minflt;
  times.copy = copied() - copied_before;
  times.phases = lockstep::step_times() - before;
  if (options.memory) report_memory(work, *optimizer);
  if (!options.operators.empty()) record_operators(work, options, *optimizer);
  return times;
}

void print(const Options& options, int ranks, const Times& times) {
  const std::chrono::duration<double> seconds = times.whole;
  const auto samples = static_cast<double>(options.batch * options.steps * ranks);
  std::cout << "samples_per_second " << samples / seconds.count() << "\nstep_ms";
  const auto part = [&](const char* name, Clock::duration time) {
    const std::chrono::duration<double, std::milli> milliseconds = time;
    std::cout << ' ' << name << ' ' << milliseconds.count() / options.steps;
  };
  part("forward", times.forward);
  part("backward", times.backward);
  part("optimizer", times.optimizer);
  part("cpu", times.processor);
  std::cout << " faults " << static_cast<double>(times.page_faults) / options.steps;
  if (ranks > 1) {
    part("copy", times.copy);
    part("wait", times.phases[lockstep::StepPhase::wait]);
    part("reduce", times.phases[lockstep::StepPhase::reduce]);
    part("step", times.phases[lockstep::StepPhase::optimizer]);
  }
  std::cout << std::endl;
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "What is trained")
      ->check(CLI::IsMember({"cnn", "resnet18", "efficientnet_b0", "gpt"}))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Samples in a step, on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--device", options.device,
                 "Where models compute; with cuda, the parts of a step are the times to enqueue it")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "Steps before the clock starts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps that are timed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  auto* alone = app.add_flag("--alone", options.alone,
                             "The bare model, in no group and without DistributedDataParallel");
  app.add_flag("--on-cue", options.on_cue,
               "With --alone: print `ready` after the warm-up, and go on at a line of input")
      ->needs(alone);
  app.add_flag("--find-unused", options.find_unused, "Set find_unused_parameters")->excludes(alone);
  app.add_flag("--broadcast-buffers,!--no-broadcast-buffers", options.broadcast_buffers,
               "Whether buffers become rank 0's before each forward; they do by default")
      ->excludes(alone);
  app.add_option(
         "--deterministic", options.deterministic,
         "Cut each step into so many microbatches, for the same bits on every number of ranks")
      ->check(CLI::PositiveNumber)
      ->excludes(alone);
  app.add_option("--overlap", options.overlap,
                 "Whether gradients are reduced during backward(); by default as the cores allow")
      ->excludes(alone);
  app.add_option("--optimizer", options.optimizer, "Which optimizer steps, and what ranks share")
      ->check(CLI::IsMember(optimizer_names()))
      ->capture_default_str()
      ->excludes(alone);
  auto* bf16 = app.add_flag("--bf16", options.bf16,
                            "Let gradients travel as bfloat16, by bf16_compress_hook()")
                   ->excludes(alone);
  app.add_option("--power-sgd", options.power_sgd,
                 "Let gradients travel as matrices of this rank, by PowerSGD")
      ->check(CLI::PositiveNumber)
      ->excludes(alone)
      ->excludes(bf16);
  app.add_option("--bucket-cap-mb", options.bucket_cap_mb,
                 "MiB of gradients in a bucket; by default those of DistributedDataParallel")
      ->check(CLI::PositiveNumber)
      ->excludes(alone);
  app.add_flag(
      "--amp", options.amp,
      "Compute in bfloat16, by lockstep::Autocast, with images and weights of convolutions "
      "in channels_last");
  app.add_flag("--memory", options.memory, "Also make a step more and print where memory goes")
      ->excludes(alone)
      ->excludes("--deterministic");
  app.add_option("--operators", options.operators,
                 "Then record LibTorch's operators of as many steps, in a file of this folder")
      ->check(CLI::ExistingDirectory);
}

void run(const Options& options) {
  torch::set_num_threads(options.threads);
  std::optional<lockstep::ProcessGroup> world;
  if (!options.alone) world = lockstep::init_process_group();
  const Times times = train(options, world);
  if (!world || world->rank() == 0) print(options, world ? world->size() : 1, times);
  if (world) lockstep::destroy_process_group(*world);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Prints the samples/s of all ranks, and where a step's time went on rank 0, in ms, with its "
      "CPU time and page faults.");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
