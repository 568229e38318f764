// Lockstep's side of bench.py: saves and loads weights and Adam's moments, equal on all ranks.
// dcp.py does the same.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <lockstep/checkpoint/checkpointer.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/tensor/collectives.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/checkpoint/files.h"
#include "bench/checkpoint/peak_memory.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  fs::path directory;
  double gb = 1;
  int saves = 2;
  bool cold = false;
};

// Acts like a module and its optimizer.
class Tensors final : public lockstep::Stateful {
 public:
  void add(const std::string& name, at::Tensor tensor) {
    tensors_.emplace(name, std::move(tensor));
  }

  lockstep::StateDict state_dict() override {
    lockstep::StateDict state;
    for (const auto& [name, tensor] : tensors_) state.tensors[name] = lockstep::whole(tensor);
    return state;
  }
  lockstep::StateRequest wanted(const lockstep::StateDict& saved) override {
    lockstep::StateRequest request = lockstep::everything(saved);
    for (const auto& [name, tensor] : tensors_) request.at(name).into = tensor;
    return request;
  }
  void load_state_dict(lockstep::StateDict) override {}

  double sum() const {
    double total = 0;
    for (const auto& [name, tensor] : tensors_) total += tensor.sum(at::kDouble).item<double>();
    return total;
  }
  void clear() {
    for (auto& [name, tensor] : tensors_) tensor.zero_();
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

struct Training {
  Tensors model;
  Tensors optimizer;
  lockstep::NamedStates parts{{"model", &model}, {"optimizer", &optimizer}};

  double sum() const { return model.sum() + optimizer.sum(); }
};

// 60 tensors of four sizes, and two moments of each; the same on all ranks.
void fill(Training& training, double gb) {
  torch::manual_seed(0);
  constexpr int layers = 15;
  const std::int64_t unit = static_cast<std::int64_t>(gb * 1e9 / 12 / layers / (1 + 16 + 64 + 192));
  for (int layer = 0; layer < layers; ++layer)
    for (const std::int64_t width : {1, 16, 64, 192}) {
      const std::string name =
          "layers." + std::to_string(layer) + "." + std::to_string(width) + ".weight";
      training.model.add(name, at::rand({width, unit}));
      for (const char* moment : {".exp_avg", ".exp_avg_sq"})
        training.optimizer.add(name + moment, at::rand({width, unit}));
    }
}

double on_all(const lockstep::ProcessGroup& world, double value, lockstep::ReduceOp op) {
  at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  lockstep::all_reduce(tensor, world, op);
  return tensor.item<double>();
}

template <class Act>
double seconds_of(const lockstep::ProcessGroup& world, Act act) {
  world.barrier();
  const auto started = Clock::now();
  act();
  const std::chrono::duration<double> seconds = Clock::now() - started;
  return on_all(world, seconds.count(), lockstep::ReduceOp::max);
}

// Figures for bench.py, in seconds and bytes; memory is the total of all ranks.
struct Figures {
  std::vector<double> save, async_save, async_done;
  double async_prepared = 0;  // The first asynchronous save after prepare().
  double load = 0;
  double load_cold = 0;  // The first load; cold only on request.
  double bytes = 0;
  double memory = 0;
  double async_memory = 0;
};

class Bench {
 public:
  Bench(const Options& options, const lockstep::ProcessGroup& world)
      : options_(options), world_(world) {
    fill(training_, options.gb);
  }

  Figures run() {
    figures_.memory = peak_of([this] { save(); });
    figures_.async_memory = peak_of([this] { save_async(); });
    save_prepared();
    const fs::path last = lockstep::list_checkpoints(options_.directory).front();
    figures_.bytes = static_cast<double>(bytes_in(last));
    const double sum = training_.sum();
    world_.barrier();
    if (options_.cold && world_.rank() == 0) drop_cached(last);
    figures_.load_cold = load(last, sum);
    figures_.load = load(last, sum);
    return figures_;
  }

 private:
  template <class Act>
  double peak_of(Act act) {
    world_.barrier();
    const PeakMemory peak;
    act();
    return on_all(world_, static_cast<double>(peak.growth()), lockstep::ReduceOp::sum);
  }

  void save() {
    lockstep::Checkpointer checkpoints(options_.directory, world_);
    for (int i = 0; i < options_.saves; ++i) {
      remove_all_saved();
      figures_.save.push_back(
          seconds_of(world_, [&] { checkpoints.save(++step_, training_.parts); }));
    }
  }

  void save_async() {
    lockstep::Checkpointer checkpoints(options_.directory, world_, {.async = true});
    for (int i = 0; i < options_.saves; ++i) {
      remove_all_saved();
      const auto started = Clock::now();
      figures_.async_save.push_back(
          seconds_of(world_, [&] { checkpoints.save(++step_, training_.parts); }));
      checkpoints.wait();
      const std::chrono::duration<double> seconds = Clock::now() - started;
      figures_.async_done.push_back(seconds.count());
    }
  }

  // When the memory is allocated, as after a few steps of a training.
  void save_prepared() {
    lockstep::Checkpointer checkpoints(options_.directory, world_, {.async = true});
    remove_all_saved();
    const PeakMemory memory;
    checkpoints.prepare(training_.parts);
    const double share = 0.99 * options_.gb * 1e9 / world_.size();
    const auto limit = Clock::now() + std::chrono::minutes(1);
    while (static_cast<double>(memory.growth_now()) < share) {
      if (Clock::now() > limit) throw std::runtime_error("the memory was not prepared");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    figures_.async_prepared =
        seconds_of(world_, [&] { checkpoints.save(++step_, training_.parts); });
    checkpoints.wait();
  }

  double load(const fs::path& checkpoint, double sum) {
    training_.model.clear();
    training_.optimizer.clear();
    const double seconds =
        seconds_of(world_, [&] { lockstep::load_checkpoint(checkpoint, training_.parts, world_); });
    if (training_.sum() != sum) throw std::runtime_error("what was loaded is not what was saved");
    return seconds;
  }

  // Call between saves, to exclude it from the next one's time.
  void remove_all_saved() {
    world_.barrier();
    if (world_.rank() == 0)
      for (const fs::path& each : lockstep::list_checkpoints(options_.directory))
        fs::remove_all(each);
    world_.barrier();
  }

  const Options& options_;
  const lockstep::ProcessGroup& world_;
  Training training_;
  std::int64_t step_ = 0;
  Figures figures_;
};

std::string list(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

void print(const Figures& figures, bool cold) {
  std::cout << "figures {\"save\": " << list(figures.save)
            << ", \"async_save\": " << list(figures.async_save)
            << ", \"async_done\": " << list(figures.async_done)
            << ", \"async_prepared\": " << figures.async_prepared << ", \"load\": " << figures.load;
  if (cold) std::cout << ", \"load_cold\": " << figures.load_cold;
  std::cout << ", \"bytes\": " << std::to_string(figures.bytes)
            << ", \"memory\": " << std::to_string(figures.memory)
            << ", \"async_memory\": " << std::to_string(figures.async_memory) << "}" << std::endl;
}

void run(const Options& options) {
  torch::set_num_threads(1);
  lockstep::ProcessGroup world = lockstep::init_process_group();
  const Figures figures = Bench(options, world).run();
  if (world.rank() == 0) print(figures, options.cold);
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints what it takes to save and load a state that all ranks have.");
  app.add_option("--dir", options.directory, "An empty folder")->required();
  app.add_option("--gb", options.gb, "Size of the state, in 1e9 bytes")->capture_default_str();
  app.add_option("--saves", options.saves, "How many, of each kind")->capture_default_str();
  app.add_flag("--cold", options.cold, "Also load with the files not in memory");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
