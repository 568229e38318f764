// A training that survives the death of ranks, and notes what it does. Each process appends to a
// file of its own in the folder NOTES.
//   draw EPOCH STEP GROUP SAMPLE...  // Before a step.
//   done STEP GROUP RANKS HASH TIME  // After it: a hash of all weights, nanoseconds.
// If the training is fully sharded, the hash is that before the step.
//
// SIGUSR2 ends the process with exit code 3.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/base/error.h>
#include <lockstep/base/time.h>
#include <lockstep/checkpoint/checkpointer.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/job/record.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/train/survival.h>
#include <signal.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Options {
  std::filesystem::path notes;
  std::int64_t epochs = 1;
  std::int64_t samples = 4096;
  std::int64_t batch = 8;
  std::int64_t width = 32;
  int pause_ms = 0;  // In each step.
  int timeout_ms = 300'000;
  int patience_ms = 30'000;

  // If set, the training does not survive: it restarts from the newest checkpoint. If it is also
  // `sharded`, it survives, and loads the newest checkpoint after a change.
  std::filesystem::path checkpoints = {};
  bool sharded = false;
  std::int64_t every = 100;  // Steps.
};

torch::nn::Sequential make_net(std::int64_t width) {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(8, width), torch::nn::BatchNorm1d(width),
                               torch::nn::Dropout(0.1), torch::nn::Linear(width, 1));
}

class Training {
 public:
  explicit Training(const Options& options)
      : options_(options),
        net_(make_net(options.width)),
        adam_(net_->parameters(), torch::optim::AdamOptions(0.01)),
        notes_(options.notes / std::to_string(::getpid())) {}

  // Returns the exit code.
  int survive() {
    lockstep::ElasticOptions elastic;
    elastic.init.timeout = std::chrono::milliseconds(options_.timeout_ms);
    elastic.patience = std::chrono::milliseconds(options_.patience_ms);
    const auto setup = [this](lockstep::ProcessGroup& world, lockstep::TrainingState& state) {
      options_.sharded ? set_up_sharded(world, state) : set_up(world, state);
    };
    lockstep::SurvivalCheckpoints checkpoints;
    if (options_.sharded) checkpoints = {options_.checkpoints, options_.every};
    lockstep::Survival survival(setup, checkpoints, elastic);
    while (survival.has_left() || !is_done()) {  // Without objects if it has left.
      const auto compute = [&] { this->compute(survival.steps(), survival.changes()); };
      if (!survival.step(compute, [&] { apply(); })) return lockstep::exit_preempted;
      note_step(survival.steps() - 1, survival.changes(), survival.world().size());
    }
    survival.finish();
    return 0;
  }

  void restart_from_checkpoints() {
    lockstep::ProcessGroup world = lockstep::init_process_group();
    lockstep::TrainingState state;
    set_up(world, state);
    lockstep::Checkpointer checkpoints(options_.checkpoints, world, {.keep_last = 2});
    const auto resumed = checkpoints.resume(state);
    for (std::int64_t step = resumed ? resumed->step : 0; !is_done(); ++step) {
      compute(step, 0);
      apply();
      note_step(step, 0, world.size());
      if ((step + 1) % options_.every == 0) checkpoints.save(step + 1, state);
    }
    lockstep::destroy_process_group(world);
  }

 private:
  void set_up(lockstep::ProcessGroup& world, lockstep::TrainingState& state) {
    ddp_.emplace(net_.ptr(), world);
    sampler_.emplace(static_cast<std::size_t>(options_.samples), world);
    state.add("model", *ddp_);
    state.add("optimizer", adam_, *net_);
    state.add("sampler", *sampler_);
    is_drawing_ = false;
  }

  void set_up_sharded(lockstep::ProcessGroup& world, lockstep::TrainingState& state) {
    sharded_adam_.reset();
    fsdp_.reset();
    net_ = make_net(options_.width);
    fsdp_.emplace(net_.ptr(), world);
    sharded_adam_.emplace(*fsdp_, net_->parameters(), torch::optim::AdamOptions(0.01));
    sampler_.emplace(static_cast<std::size_t>(options_.samples), world);
    state.add("model", *fsdp_);
    state.add("optimizer", *sharded_adam_, *net_);
    state.add("sampler", *sampler_);
    is_drawing_ = false;
  }

  bool is_done() const {
    return sampler_->epoch() == options_.epochs - 1 && sampler_->remaining() == 0;
  }

  void compute(std::int64_t step, int group) {
    drawn_ = draw(step, group);
    options_.sharded ? sharded_adam_->zero_grad() : net_->zero_grad();
    const at::Tensor data = data_of(drawn_);
    const at::Tensor guess = options_.sharded ? (*fsdp_)(data) : (*ddp_)(data);
    (guess - data.sum(1, true)).square().mean().backward();
    if (options_.sharded) hash_ = hash_of_weights();  // No other rank steps them now.
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
  }

  void apply() {
    if (options_.sharded)
      sharded_adam_->step();
    else
      adam_.step();
    sampler_->consume(drawn_.size());
  }

  std::vector<std::size_t> draw(std::int64_t step, int group) {
    if (sampler_->remaining() == 0) {
      sampler_->set_epoch(sampler_->epoch() + 1);
      is_drawing_ = false;
    }
    if (!is_drawing_) sampler_->reset();
    is_drawing_ = true;
    auto drawn = *sampler_->next(static_cast<std::size_t>(options_.batch));
    notes_ << "draw " << sampler_->epoch() << ' ' << step << ' ' << group;
    for (const std::size_t sample : drawn) notes_ << ' ' << sample;
    notes_ << std::endl;
    return drawn;
  }

  static at::Tensor data_of(const std::vector<std::size_t>& samples) {
    std::vector<at::Tensor> rows;
    for (const std::size_t sample : samples)
      rows.push_back(at::sin(at::arange(8, at::kFloat) * (0.1 + 0.37 * double(sample))));
    return at::stack(rows);
  }

  std::uint64_t hash_of_weights() const {
    std::uint64_t hash = 0;
    for (const at::Tensor& parameter : net_->parameters())
      hash = XXH3_64bits_withSeed(parameter.const_data_ptr(), parameter.nbytes(), hash);
    return hash;
  }

  void note_step(std::int64_t step, int group, int ranks) {
    if (!options_.sharded) hash_ = hash_of_weights();
    notes_ << "done " << step << ' ' << group << ' ' << ranks << ' ' << hash_ << ' '
           << lockstep::Clock::now().time_since_epoch().count() << std::endl;
  }

  const Options& options_;
  torch::nn::Sequential net_;
  torch::optim::Adam adam_;
  std::ofstream notes_;
  std::optional<lockstep::DistributedDataParallel<torch::nn::SequentialImpl>> ddp_;
  std::optional<lockstep::FullyShardedDataParallel<torch::nn::SequentialImpl>> fsdp_;
  std::optional<lockstep::FullyShardedOptimizer<lockstep::Adam>> sharded_adam_;
  std::optional<lockstep::DistributedSampler> sampler_;
  std::uint64_t hash_ = 0;
  bool is_drawing_ = false;
  std::vector<std::size_t> drawn_;
};

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGUSR2, [](int) { ::_exit(3); });
  Options options;
  CLI::App app("A training that survives the death of ranks, for tests and measurements");
  app.add_option("--notes", options.notes)->required()->check(CLI::ExistingDirectory);
  app.add_option("--epochs", options.epochs);
  app.add_option("--samples", options.samples);
  app.add_option("--batch", options.batch);
  app.add_option("--width", options.width);
  app.add_option("--pause-ms", options.pause_ms);
  app.add_option("--timeout-ms", options.timeout_ms);
  app.add_option("--patience-ms", options.patience_ms);
  app.add_option("--checkpoints", options.checkpoints);
  app.add_option("--every", options.every);
  app.add_flag("--sharded", options.sharded);
  CLI11_PARSE(app, argc, argv);
  int code = 0;
  const int failed = lockstep::record([&] {
    Training training(options);
    if (options.checkpoints.empty() || options.sharded)
      code = training.survive();
    else
      training.restart_from_checkpoints();
  });
  return failed != 0 ? failed : code;
}
