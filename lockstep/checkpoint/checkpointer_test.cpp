// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpointer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/module_state.h"
#include "tests/ranks.h"

namespace lockstep::checkpoint::checkpointer_test {
namespace {

namespace fs = std::filesystem;

// Loading replaces its tensors.
class Tensors : public Stateful {
 public:
  Tensors() = default;
  explicit Tensors(StateDict state) : state_(std::move(state)) {}

  StateDict state_dict() override { return state_; }
  StateRequest wanted(const StateDict& saved) override {
    if (!request_.empty()) return request_;
    return everything(saved);
  }
  void load_state_dict(StateDict state) override { state_ = std::move(state); }

  void want(StateRequest request) { request_ = std::move(request); }
  StateDict& state() { return state_; }
  const at::Tensor& tensor(const std::string& name) const { return state_.tensors.at(name).data; }

 private:
  StateDict state_;
  StateRequest request_;
};

StateDict some_state(double factor) {
  StateDict state;
  state.tensors["weight"] = whole(at::arange(12, at::kFloat).reshape({3, 4}).mul_(factor));
  state.tensors["empty"] = whole(at::zeros({0, 4}));
  state.tensors["scalar"] = whole(at::full({}, factor, at::kDouble));
  state.tensors["transposed"] = whole(at::arange(6, at::kFloat).mul_(factor).reshape({2, 3}).t());
  state.values["step"] = std::int64_t{7};
  state.values["lr"] = 0.1 * factor;
  state.values["minus zero"] = -0.0;
  state.values["best"] = std::numeric_limits<double>::infinity();
  state.values["name"] = std::string("größe");
  state.values["done"] = true;
  state.values["betas"] = std::vector<double>{0.9, 0.999};
  return state;
}

void expect_same(const StateDict& a, const StateDict& b) {
  EXPECT_EQ(a.values, b.values);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    EXPECT_EQ(tensor.data.scalar_type(), b.tensors.at(name).data.scalar_type());
    EXPECT_TRUE(at::equal(tensor.data, b.tensors.at(name).data)) << name;
  }
}

std::string error_of(const std::function<void()>& body, Fault fault) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(name(error.fault()), name(fault)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  names.erase(".lock");
  return names;
}

void flip_last_byte(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
}

class Checkpoints : public testing::Test {
 protected:
  ~Checkpoints() override { set_log_sink({}); }

  void catch_log() {
    set_log_sink([this](LogLevel, std::string_view text) { log_ += std::string(text) + '\n'; });
  }

  fs::path root() const { return scratch_.path() / "runs" / "a"; }
  fs::path step(const std::string& number) const { return root() / ("step-0000000" + number); }

  const test::ScratchDirectory scratch_;
  std::string log_;
};

TEST_F(Checkpoints, AreSavedAndLoadedByOneProcess) {
  Tensors saved(some_state(1)), loaded;
  Checkpointer checkpoints(root(), ProcessGroup::self());
  EXPECT_FALSE(checkpoints.resume({{"model", &loaded}}).has_value());
  checkpoints.save(100, {{"model", &saved}});
  EXPECT_EQ(names_in(root()), (std::set<std::string>{"latest", "step-0000000100"}));
  EXPECT_EQ(names_in(step("100")),
            (std::set<std::string>{"manifest.json", "model-00001-of-00001.safetensors"}));
  const auto resumed = checkpoints.resume({{"model", &loaded}});
  ASSERT_TRUE(resumed.has_value());
  EXPECT_EQ(resumed->step, 100);
  EXPECT_EQ(resumed->directory, step("100"));
  expect_same(loaded.state(), saved.state());
  EXPECT_TRUE(std::signbit(std::get<double>(loaded.state().values["minus zero"])));
}

TEST_F(Checkpoints, ArePlainFilesOfSafetensors) {
  Tensors saved(some_state(2));
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  const Safetensors file = load_safetensors(step("001") / "model-00001-of-00001.safetensors");
  std::map<std::string, at::Tensor> tensors(file.tensors.begin(), file.tensors.end());
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_TRUE(at::equal(tensors.at("transposed"), saved.tensor("transposed")));
}

TEST_F(Checkpoints, HoldEveryTensorOnceWhenSavedBySeveralRanks) {
  run_in_process(3, [&](ProcessGroup& world) {
    StateDict state = some_state(1);
    for (int i = 0; i < 7; ++i)
      state.tensors["layer." + std::to_string(i)] = whole(at::full({100 + i}, i, at::kFloat));
    state.tensors["rank." + std::to_string(world.rank())] =
        whole(at::full({5}, world.rank(), at::kByte));
    StateTensor statistics = whole(at::full({8}, world.rank() + 1, at::kFloat));
    statistics.of_rank_0 = true;
    state.tensors["running_mean"] = statistics;
    Tensors saved(state), other;
    Checkpointer(root(), world).save(5, {{"model", &saved}, {"other", &other}});
    world.barrier();

    Tensors loaded, rest;
    EXPECT_EQ(load_checkpoint(root(), {{"other", &rest}, {"model", &loaded}}, world), 5);
    EXPECT_EQ(loaded.state().tensors.size(), state.tensors.size() + 2);
    EXPECT_TRUE(at::equal(loaded.tensor("layer.6"), state.tensors["layer.6"].data));
    EXPECT_TRUE(at::equal(loaded.tensor("rank.2"), at::full({5}, 2, at::kByte)));
    EXPECT_TRUE(at::equal(loaded.tensor("running_mean"), at::full({8}, 1, at::kFloat)));
    EXPECT_EQ(loaded.state().values, state.values);
  });
  const CheckpointReader reader(step("005"));
  EXPECT_EQ(reader.world_size(), 3);
  EXPECT_EQ(reader.parts(), (std::vector<std::string>{"model", "other"}));
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), most = 0;
  for (const auto& file : reader.files()) {
    least = std::min(least, file.bytes);
    most = std::max(most, file.bytes);
  }
  EXPECT_EQ(reader.files().size(), 3u);
  EXPECT_LT(most - least, 600u) << "ranks write about as many bytes";
}

// Elements [12 r / R, 12 (r + 1) / R) of a tensor with `strides`.
StateTensor chunk(const at::Tensor& flat, const ProcessGroup& world,
                  std::vector<std::int64_t> strides = {}) {
  const std::int64_t begin = flat.numel() * world.rank() / world.size();
  const std::int64_t end = flat.numel() * (world.rank() + 1) / world.size();
  return {.data = flat.slice(0, begin, end),
          .shape = {3, flat.numel() / 3},
          .strides = std::move(strides),
          .begin = begin};
}

TEST_F(Checkpoints, JoinChunksOfSeveralRanks) {
  for (const bool async : {false, true}) {
    const fs::path folder = root() / (async ? "async" : "sync");
    const at::Tensor flat = at::randn({12}), large = at::randn({3 << 18});
    run_in_process(4, [&](ProcessGroup& world) {
      StateDict state;
      state.tensors["rows"] = chunk(flat, world);
      state.tensors["columns"] = chunk(flat, world, {1, 3});
      for (int i = 0; i < 5; ++i) state.tensors["large." + std::to_string(i)] = chunk(large, world);
      Tensors saved(state);
      Checkpointer checkpoints(folder, world, {.async = async});
      checkpoints.save(1, {{"optimizer", &saved}});
      checkpoints.wait();
    });
    const CheckpointReader reader(folder / "latest");
    EXPECT_TRUE(at::equal(reader.read("optimizer", "rows"), flat.view({3, 4})));
    EXPECT_TRUE(at::equal(reader.read("optimizer", "columns"), flat.view({4, 3}).t()));
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(
          at::equal(reader.read("optimizer", "large." + std::to_string(i)), large.view({3, -1})));
  }
}

TEST_F(Checkpoints, KeepComplexNumbers) {
  const at::Tensor flat = at::randn({12}, at::kComplexFloat);
  for (const bool async : {false, true}) {
    const fs::path folder = root() / (async ? "async" : "sync");
    run_in_process(3, [&](ProcessGroup& world) {
      StateDict state;
      state.tensors["whole"] = whole(flat.view({3, 4}));
      state.tensors["conjugate"] = whole(flat.conj());  // Its memory holds other values.
      state.tensors["chunks"] = chunk(flat, world);
      Tensors saved(state), loaded;
      Checkpointer checkpoints(folder, world, {.async = async});
      checkpoints.save(1, {{"model", &saved}});
      checkpoints.wait();
      load_checkpoint(folder, {{"model", &loaded}}, world);
      EXPECT_TRUE(at::equal(loaded.tensor("whole"), flat.view({3, 4})));
      EXPECT_TRUE(at::equal(loaded.tensor("conjugate"), flat.conj().resolve_conj()));
      EXPECT_TRUE(at::equal(loaded.tensor("chunks"), flat.view({3, 4})));
    });
  }
}

TEST_F(Checkpoints, AreLoadedToTensorsThatLibTorchConjugatesLazily) {
  const at::Tensor value = at::randn({4}, at::kComplexFloat);
  Tensors saved({.tensors = {{"buffer", whole(value)}}, .values = {}});
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  torch::nn::Module module;
  module.register_buffer("buffer", at::zeros({4}, at::kComplexFloat).conj());
  load_checkpoint(root(), {{"model", state_of(module).get()}}, ProcessGroup::self());
  EXPECT_TRUE(at::equal(module.named_buffers()["buffer"].resolve_conj(), value));
}

TEST_F(Checkpoints, AreRefusedWhenTwoTensorsSharedInTheModuleDiffer) {
  const auto save = [&](std::int64_t step, const at::Tensor& weight, const at::Tensor& again) {
    Tensors saved({.tensors = {{"weight", whole(weight)}, {"again", whole(again)}}, .values = {}});
    Checkpointer(root(), ProcessGroup::self()).save(step, {{"model", &saved}});
  };
  const at::Tensor good = at::randn({3, 3});
  save(1, good, good.clone());
  save(2, good, good + 1);
  run_in_process(2, [&](ProcessGroup& world) {
    torch::nn::Linear twice(torch::nn::LinearOptions(3, 3).bias(false));
    twice->register_parameter("again", twice->weight);
    const at::Tensor before = twice->weight.detach().clone();
    const auto state = state_of(*twice);
    Checkpointer checkpoints(root(), world);
    const std::string message = error_of(
        [&] {
          checkpoints.resume({{"model", state.get()}});
        },
        Fault::mismatch);
    EXPECT_TRUE(contains(message, "part 'model': weight and again are one tensor")) << message;
    EXPECT_TRUE(contains(message, step("002").string())) << message;
    EXPECT_TRUE(at::equal(twice->weight, before));
    EXPECT_EQ(load_checkpoint(step("001"), {{"model", state.get()}}, world), 1);
    EXPECT_TRUE(at::equal(twice->weight, good));
  });
}

TEST_F(Checkpoints, GiveARankThePartThatItWants) {
  Tensors saved(some_state(1)), loaded;
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  loaded.want({{"weight", {5, 9}}, {"empty", {0, 0}}});
  load_checkpoint(root(), {{"model", &loaded}}, ProcessGroup::self());
  EXPECT_TRUE(at::equal(loaded.tensor("weight"), at::arange(5, 9, at::kFloat)));
  EXPECT_EQ(loaded.state().tensors.at("weight").begin, 5);
  EXPECT_EQ(loaded.state().tensors.at("weight").shape, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(loaded.state().values, saved.state().values);
}

TEST_F(Checkpoints, AreNamedByRanksThatDisagree) {
  const auto error_with = [&](const std::function<void(StateDict&, int)>& change, Fault fault) {
    std::string text;
    run_in_process(2, [&](ProcessGroup& world) {
      StateDict state = some_state(1);
      change(state, world.rank());
      Tensors saved(state), good(some_state(1));
      Checkpointer checkpoints(root(), world);
      const std::string message = error_of(
          [&] {
            checkpoints.save(1, {{"model", &saved}});
          },
          fault);
      if (world.rank() == 1) text = message;
      world.barrier();
      EXPECT_FALSE(fs::exists(step("001")));
      world.barrier();
      checkpoints.save(2, {{"model", &good}});  // The group stays usable.
      world.barrier();
      if (world.rank() == 0) fs::remove_all(root());
    });
    return text;
  };
  EXPECT_TRUE(contains(
      error_with([](StateDict& s, int rank) { s.values["lr"] = 0.1 + rank; }, Fault::mismatch),
      "model: value \"lr\" differs between rank 1 and an earlier rank"));
  EXPECT_TRUE(contains(error_with(
                           [](StateDict& s, int rank) {
                             if (rank == 1) s.tensors["weight"] = whole(at::zeros({3, 5}));
                           },
                           Fault::mismatch),
                       "tensor \"weight\" has another type or shape on rank 1 than on rank 0"));
  EXPECT_TRUE(contains(error_with(
                           [](StateDict& s, int rank) {
                             if (rank == 0)
                               s.tensors["scalar"] = whole(at::zeros({2}, at::kComplexDouble));
                           },
                           Fault::unsupported),
                       "rank 0: safetensors: tensor \"scalar\""));
  EXPECT_TRUE(contains(error_with(
                           [](StateDict& s, int rank) {
                             if (rank == 0) return;
                             s.tensors["half"] = {.data = at::zeros({2}), .shape = {4}, .begin = 2};
                           },
                           Fault::mismatch),
                       "no rank has its elements from 0 on"));
}

TEST_F(Checkpoints, AreRefusedWhenPartsOrStepsDifferBetweenRanks) {
  run_in_process(2, [&](ProcessGroup& world) {
    Tensors saved(some_state(1));
    Checkpointer checkpoints(root(), world);
    const std::string part = world.rank() == 0 ? "model" : "net";
    EXPECT_TRUE(contains(error_of(
                             [&] {
                               checkpoints.save(1, {{part, &saved}});
                             },
                             Fault::mismatch),
                         "the parts of the state differ between rank 0 and rank 1"));
    error_of([&] { checkpoints.save(world.rank(), {{"model", &saved}}); }, Fault::mismatch);
    error_of([&] { checkpoints.save(1, {{"../model", &saved}}); }, Fault::misuse);
    error_of([&] { checkpoints.save(-1, {{"model", &saved}}); }, Fault::misuse);
  });
}

TEST_F(Checkpoints, HoldTheStateAtTheTimeOfTheSnapshot) {
  run_in_process(2, [&](ProcessGroup& world) {
    const at::Tensor weight = at::full({1 << 20}, 1, at::kFloat);
    StateDict state;
    state.tensors["weight"] = whole(weight);
    state.tensors["columns"] = whole(weight.view({1 << 10, 1 << 10}).t());
    Tensors saved(state);
    Checkpointer checkpoints(root(), world, {.async = true});
    for (int i = 1; i <= 3; ++i) {
      weight.fill_(i);
      checkpoints.save(i, {{"model", &saved}});
      weight.fill_(-1);  // Simulates further training.
    }
    checkpoints.wait();
    Tensors loaded;
    for (int i = 1; i <= 3; ++i) {
      load_checkpoint(step("00" + std::to_string(i)), {{"model", &loaded}}, world);
      EXPECT_TRUE(at::equal(loaded.tensor("weight"), at::full({1 << 20}, i, at::kFloat)));
      EXPECT_TRUE(at::equal(loaded.tensor("columns"), at::full({1 << 10, 1 << 10}, i, at::kFloat)));
    }
  });
}

std::int64_t resident() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, pages = 0;
  file >> all >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

TEST_F(Checkpoints, AreCopiedToMemoryThatWasPrepared) {
  constexpr std::int64_t bytes = 64 << 20;
  StateDict state;
  state.tensors["weight"] = whole(at::full({bytes / 4}, 1, at::kFloat));
  Tensors saved(state), loaded;
  Checkpointer checkpoints(root(), ProcessGroup::self(), {.async = true});
  const std::int64_t before = resident();
  checkpoints.prepare({{"model", &saved}});
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (resident() - before < bytes && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::int64_t prepared = resident();
  ASSERT_GE(prepared - before, bytes * 9 / 10);
  EXPECT_TRUE(list_checkpoints(root()).empty());
  checkpoints.save(1, {{"model", &saved}});
  checkpoints.wait();
  EXPECT_LT(resident() - prepared, bytes / 2);
  load_checkpoint(root(), {{"model", &loaded}}, ProcessGroup::self());
  expect_same(loaded.state(), saved.state());
}

TEST_F(Checkpoints, MayBecomeLargerThanWhatWasPrepared) {
  run_in_process(2, [&](ProcessGroup& world) {
    StateDict state;
    state.tensors["weight"] = whole(at::arange(1 << 20, at::kFloat));
    state.tensors["bias"] = whole(at::arange(1 << 20, at::kFloat).neg());
    Tensors saved(state), loaded;
    Checkpointer checkpoints(root(), world, {.async = true});
    checkpoints.prepare({{"model", &saved}});
    for (const std::string moment : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
      for (const std::string name : {"weight", "bias"})
        saved.state().tensors[name + "." + moment] =
            whole(at::full({1 << 20}, double(name.size() + moment.size()), at::kFloat));
    checkpoints.save(1, {{"model", &saved}});
    checkpoints.prepare({{"model", &saved}});  // Waits for the save.
    checkpoints.save(2, {{"model", &saved}});
    checkpoints.wait();
    for (const std::string number : {"001", "002"}) {
      load_checkpoint(step(number), {{"model", &loaded}}, world);
      expect_same(loaded.state(), saved.state());
    }
    checkpoints.prepare({{"model", &saved}});
  });
}

TEST_F(Checkpoints, ThatAreSynchronousAreNotPrepared) {
  Tensors saved(some_state(1));
  Checkpointer checkpoints(root(), ProcessGroup::self());
  error_of([&] { checkpoints.prepare({{"model", &saved}}); }, Fault::misuse);
}

TEST_F(Checkpoints, ThatOneRankSavesAndAnotherPreparesAreRefused) {
  run_in_process(2, [&](ProcessGroup& world) {
    Tensors saved(some_state(1));
    Checkpointer checkpoints(root(), world, {.async = true});
    const std::string message = error_of(
        [&] {
          if (world.rank() == 0) checkpoints.prepare({{"model", &saved}});
          if (world.rank() == 1) checkpoints.save(5, {{"model", &saved}});
        },
        Fault::mismatch);
    EXPECT_TRUE(contains(message, "prepares a copy"));
    EXPECT_TRUE(contains(message, "saves step 5"));
  });
}

TEST_F(Checkpoints, ReportABackgroundFailureAtTheNextCall) {
  Tensors saved(some_state(1));
  Checkpointer checkpoints(root(), ProcessGroup::self(), {.async = true});
  checkpoints.save(1, {{"model", &saved}});
  checkpoints.wait();
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{.rlim_cur = 100, .rlim_max = old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  checkpoints.save(2, {{"model", &saved}});
  const std::string message = error_of([&] { checkpoints.wait(); }, Fault::system);
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_TRUE(contains(message, "File too large")) << message;
  EXPECT_EQ(names_in(root()), (std::set<std::string>{"latest", "step-0000000001"}));
  checkpoints.save(2, {{"model", &saved}});
  checkpoints.wait();
  EXPECT_EQ(fs::read_symlink(root() / "latest"), "step-0000000002");
}

// After scp -r or cp -rL: `latest` is a copy of its target folder.
class CopiedCheckpoints : public Checkpoints {
 protected:
  CopiedCheckpoints() {
    for (int i = 1; i <= 2; ++i) {
      Tensors saved(some_state(i));
      Checkpointer(root(), ProcessGroup::self()).save(i, {{"model", &saved}});
    }
    fs::copy(root(), copy_, fs::copy_options::recursive);
  }

  const fs::path copy_ = scratch_.path() / "copy";
};

TEST_F(CopiedCheckpoints, AreResumedFromAndSavedToAndKeepTheFolderLatest) {
  ASSERT_TRUE(fs::is_directory(fs::symlink_status(copy_ / "latest")));
  catch_log();
  Checkpointer checkpoints(copy_, ProcessGroup::self(), {.keep_last = 2});
  Tensors state;
  EXPECT_EQ(checkpoints.resume({{"model", &state}})->step, 2);
  EXPECT_EQ(occurrences(log_, "latest will not lead to the newest checkpoint"), 1) << log_;
  checkpoints.save(3, {{"model", &state}});
  checkpoints.save(4, {{"model", &state}});
  EXPECT_EQ(occurrences(log_, "latest will not lead to the newest checkpoint"), 1) << log_;
  EXPECT_EQ(list_checkpoints(copy_),
            (std::vector<fs::path>{copy_ / "step-0000000004", copy_ / "step-0000000003"}));
  EXPECT_EQ(load_checkpoint(copy_, {{"model", &state}}, ProcessGroup::self()), 4);
  EXPECT_EQ(load_checkpoint(copy_ / "latest", {{"model", &state}}, ProcessGroup::self()), 2)
      << "it is the user's";
}

TEST_F(CopiedCheckpoints, AreResumedFromThePreviousOneWhenTheNewestIsDamaged) {
  catch_log();
  flip_last_byte(copy_ / "step-0000000002" / "manifest.json");
  Checkpointer checkpoints(copy_, ProcessGroup::self());
  Tensors state;
  const auto resumed = checkpoints.resume({{"model", &state}});
  EXPECT_EQ(resumed->step, 1);
  EXPECT_EQ(resumed->skipped.size(), 1u);
  checkpoints.save(2, {{"model", &state}});
  EXPECT_TRUE(fs::exists(copy_ / "latest" / "manifest.json"));
}

TEST_F(CopiedCheckpoints, GetTheirLinkBackOnceTheFolderIsGone) {
  catch_log();
  Checkpointer checkpoints(copy_, ProcessGroup::self());
  Tensors state;
  checkpoints.resume({{"model", &state}});
  fs::remove_all(copy_ / "latest");
  checkpoints.save(3, {{"model", &state}});
  EXPECT_EQ(fs::read_symlink(copy_ / "latest"), "step-0000000003");
}

TEST_F(Checkpoints, LeaveAFileAloneThatIsCalledLatest) {
  catch_log();
  fs::create_directories(root());
  std::ofstream(root() / "latest") << "step-0000000007";
  Tensors saved(some_state(1));
  Checkpointer(root(), ProcessGroup::self()).save(8, {{"model", &saved}});
  EXPECT_EQ(fs::file_size(root() / "latest"), 15u);
  EXPECT_EQ(latest_checkpoint(root()), step("008"));
}

TEST_F(Checkpoints, AreKeptAccordingToTheOptions) {
  Tensors saved(some_state(1));
  Checkpointer checkpoints(root(), ProcessGroup::self(), {.keep_last = 2, .keep_every = 30});
  for (int step = 10; step <= 80; step += 10) checkpoints.save(step, {{"model", &saved}});
  EXPECT_EQ(names_in(root()), (std::set<std::string>{"latest", "step-0000000030", "step-0000000060",
                                                     "step-0000000070", "step-0000000080"}));
}

TEST_F(Checkpoints, NeedAFolderAndReportAFileInItsPlaceFirst) {
  catch_log();
  fs::create_directories(root().parent_path());
  std::ofstream(root()) << "a file";
  Tensors state(some_state(1));
  for (const fs::path& place : {root(), root() / "below"}) {
    Checkpointer checkpoints(place, ProcessGroup::self());
    const std::string expected = root().string() + " is not a folder";
    for (const bool saves : {false, true}) {
      const std::string text = error_of(
          [&] {
            saves ? checkpoints.save(1, {{"model", &state}})
                  : static_cast<void>(checkpoints.resume({{"model", &state}}));
          },
          Fault::system);
      EXPECT_TRUE(contains(text, expected)) << text;
    }
    EXPECT_TRUE(contains(error_of([&] { list_checkpoints(place); }, Fault::system), expected));
  }
  EXPECT_EQ(log_, "");
}

TEST_F(Checkpoints, AreNotSavedInACheckpoint) {
  Tensors state(some_state(1));
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &state}});
  const fs::path inside = root() / "step-0000000001";
  const auto before = names_in(inside);
  Checkpointer checkpoints(inside, ProcessGroup::self());
  const auto expect_refused = [&](const std::function<void()>& body) {
    const std::string text = error_of(body, Fault::misuse);
    EXPECT_TRUE(contains(text, inside.string() + " is a checkpoint")) << text;
  };
  expect_refused([&] { checkpoints.resume({{"model", &state}}); });
  expect_refused([&] { checkpoints.save(2, {{"model", &state}}); });
  EXPECT_EQ(names_in(inside), before);
}

TEST_F(Checkpoints, AreRefusedForAnExistingStep) {
  Tensors saved(some_state(1)), other(some_state(2)), loaded;
  Checkpointer checkpoints(root(), ProcessGroup::self());
  checkpoints.save(1, {{"model", &saved}});
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             checkpoints.save(1, {{"model", &other}});
                           },
                           Fault::misuse),
                       "exists already"));
  checkpoints.resume({{"model", &loaded}});
  expect_same(loaded.state(), saved.state());
  EXPECT_EQ(names_in(root()), (std::set<std::string>{"latest", "step-0000000001"}));
}

TEST_F(Checkpoints, ThatAreDamagedAreSkippedAndSetAside) {
  catch_log();
  Tensors loaded;
  {
    Checkpointer checkpoints(root(), ProcessGroup::self());
    for (int i = 1; i <= 3; ++i) {
      Tensors saved(some_state(i));
      checkpoints.save(i, {{"model", &saved}});
    }
  }
  flip_last_byte(step("003") / "model-00001-of-00001.safetensors");
  fs::remove(step("002") / "manifest.json");
  Checkpointer checkpoints(root(), ProcessGroup::self());
  const auto resumed = checkpoints.resume({{"model", &loaded}});
  ASSERT_TRUE(resumed.has_value());
  EXPECT_EQ(resumed->step, 1);
  expect_same(loaded.state(), some_state(1));
  ASSERT_EQ(resumed->skipped.size(), 2u);
  EXPECT_EQ(resumed->skipped[0].directory, step("003"));
  EXPECT_TRUE(contains(resumed->skipped[0].reason, "model-00001-of-00001.safetensors: tensor"));
  EXPECT_TRUE(contains(resumed->skipped[1].reason, "manifest.json: the file is missing"));
  EXPECT_TRUE(contains(log_, "step-0000000003 is skipped")) << log_;

  const std::string path = step("003").string();
  EXPECT_EQ(log_.find(path), log_.rfind(path)) << "the path is shown once: " << log_;

  checkpoints.save(3, {{"model", &loaded}});
  EXPECT_EQ(fs::read_symlink(root() / "latest"), "step-0000000003");
  EXPECT_TRUE(contains(log_, "step-0000000003 is damaged")) << log_;
  EXPECT_EQ(checkpoints.resume({{"model", &loaded}})->step, 3);
}

TEST_F(Checkpoints, ThatCannotBeReadAreSetAsideToo) {
  catch_log();
  Tensors saved(some_state(1)), loaded;
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  std::ofstream(step("002")) << "a file, where a folder should be";
  Checkpointer checkpoints(root(), ProcessGroup::self(), {.keep_last = 2});
  EXPECT_EQ(checkpoints.resume({{"model", &loaded}})->step, 1);
  checkpoints.save(2, {{"model", &loaded}});
  EXPECT_EQ(list_checkpoints(root()), (std::vector<fs::path>{step("002"), step("001")}));
  EXPECT_EQ(load_checkpoint(root(), {{"model", &loaded}}, ProcessGroup::self()), 2);
}

TEST_F(Checkpoints, ThatCanBeReadAgainAreNotSetAside) {
  catch_log();
  Tensors saved(some_state(1)), loaded;
  Checkpointer checkpoints(root(), ProcessGroup::self());
  checkpoints.save(1, {{"model", &saved}});
  checkpoints.save(2, {{"model", &saved}});
  fs::rename(step("002") / "manifest.json", step("002") / "elsewhere");
  EXPECT_EQ(checkpoints.resume({{"model", &loaded}})->step, 1);
  fs::rename(step("002") / "elsewhere", step("002") / "manifest.json");
  EXPECT_EQ(checkpoints.resume({{"model", &loaded}})->step, 2);
  checkpoints.save(3, {{"model", &saved}});
  EXPECT_EQ(list_checkpoints(root()).size(), 3u);
}

TEST_F(Checkpoints, AreFoundWithoutTheirLink) {
  Tensors saved(some_state(1)), loaded;
  Checkpointer checkpoints(root(), ProcessGroup::self());
  EXPECT_EQ(latest_checkpoint(root()), std::nullopt);
  checkpoints.save(1, {{"model", &saved}});
  checkpoints.save(2, {{"model", &saved}});
  fs::remove(root() / "latest");
  EXPECT_EQ(load_checkpoint(root(), {{"model", &loaded}}, ProcessGroup::self()), 2);
  fs::create_symlink("step-0000000003", root() / "latest");
  EXPECT_EQ(latest_checkpoint(root()), step("002"));
}

TEST_F(Checkpoints, AreOnTheDiskWhenTheirGroupIsDestroyed) {
  StateDict state;
  state.tensors["weight"] = whole(at::randn({1 << 22}));
  Tensors saved(state);
  std::array<std::unique_ptr<Checkpointer>, 2> checkpoints;  // They outlive the group.
  run_in_process(2, [&](ProcessGroup& world) {
    auto& own = checkpoints.at(static_cast<std::size_t>(world.rank()));
    own = std::make_unique<Checkpointer>(root(), world, CheckpointerOptions{.async = true});
    own->save(1, {{"model", &saved}});
  });
  EXPECT_TRUE(fs::exists(step("001") / "manifest.json"));
}

TEST_F(Checkpoints, DoNotHoldUpAnExceptionThatEndsTheTraining) {
  catch_log();
  EXPECT_THROW(run_in_process(2,
                              [&](ProcessGroup& world) {
                                StateDict state;
                                state.tensors["weight"] = whole(at::zeros({1 << 24}));
                                Tensors saved(state);
                                Checkpointer checkpoints(root(), world, {.async = true});
                                checkpoints.save(1, {{"model", &saved}});
                                if (world.rank() == 1) throw std::runtime_error("a training error");
                                world.barrier();
                              }),
               std::exception);
  EXPECT_TRUE(contains(log_, "an exception ends the training") || fs::exists(step("001"))) << log_;
  Tensors saved(some_state(1));
  Checkpointer(root(), ProcessGroup::self()).save(2, {{"model", &saved}});
}

TEST_F(Checkpoints, CauseAnErrorInsteadOfAFreshStartWhenAllAreDamaged) {
  catch_log();
  Tensors saved(some_state(1));
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  flip_last_byte(step("001") / "manifest.json");
  Tensors loaded(some_state(5));
  EXPECT_TRUE(
      contains(error_of(
                   [&] {
                     Checkpointer(root(), ProcessGroup::self()).resume({{"model", &loaded}});
                   },
                   Fault::corrupt),
               "none of its 1 checkpoints can be loaded"));
  expect_same(loaded.state(), some_state(5));
}

TEST_F(Checkpoints, ThatDoNotFitTheProgramAreMisuse) {
  Tensors saved(some_state(1)), other;
  Checkpointer checkpoints(root(), ProcessGroup::self());
  checkpoints.save(1, {{"model", &saved}, {"optimizer", &other}});
  Tensors model, optimizer;
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             checkpoints.resume({{"model", &model}});
                           },
                           Fault::misuse),
                       "has the part 'optimizer', which this program's state lacks"));
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             load_checkpoint(root(), {{"ema", &model}}, ProcessGroup::self());
                           },
                           Fault::misuse),
                       "has no part 'ema'; it has 'model', 'optimizer'"));
  EXPECT_EQ(load_checkpoint(root(), {{"model", &model}}, ProcessGroup::self()), 1)
      << "parts may be loaded alone";
  EXPECT_TRUE(
      contains(error_of(
                   [&] {
                     load_checkpoint(root() / "none", {{"model", &model}}, ProcessGroup::self());
                   },
                   Fault::system),
               "No such file"));
}

TEST_F(Checkpoints, FormOneTrainingSequencePerFolder) {
  Tensors saved(some_state(1)), loaded;
  {
    Checkpointer checkpoints(root(), ProcessGroup::self());
    checkpoints.save(10, {{"model", &saved}});
    checkpoints.save(20, {{"model", &saved}});
  }
  Checkpointer again(root(), ProcessGroup::self());
  load_checkpoint(step("010"), {{"model", &loaded}}, ProcessGroup::self());
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             again.save(15, {{"model", &saved}});
                           },
                           Fault::misuse),
                       "step-0000000020 exists already: resume from it"));
  fs::rename(step("010"), step("030"));
  EXPECT_TRUE(contains(error_of([&] { CheckpointReader reader(step("030")); }, Fault::corrupt),
                       "step 10, but its folder is named for another step"));
  catch_log();
  EXPECT_EQ(again.resume({{"model", &loaded}})->step, 20);
  again.save(30, {{"model", &saved}});
}

TEST_F(Checkpoints, AreReportedMissingInAnEmptyFolder) {
  Tensors loaded;
  fs::create_directories(root());
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             load_checkpoint(root(), {{"model", &loaded}}, ProcessGroup::self());
                           },
                           Fault::misuse),
                       "holds no checkpoint"));
}

TEST_F(Checkpoints, AllowOnlyTheFirstOfTwoWriters) {
  Tensors saved(some_state(1));
  Checkpointer first(root(), ProcessGroup::self()), second(root(), ProcessGroup::self());
  first.save(1, {{"model", &saved}});
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             second.save(2, {{"model", &saved}});
                           },
                           Fault::system),
                       "another job, or another Checkpointer"));
  first.save(2, {{"model", &saved}});
  EXPECT_EQ(list_checkpoints(root()), (std::vector<fs::path>{step("002"), step("001")}));
}

TEST_F(Checkpoints, ThatAnotherJobSavesAreNotResumedFromOnAnyRank) {
  Tensors saved(some_state(1));
  Checkpointer first(root(), ProcessGroup::self());
  EXPECT_FALSE(first.resume({{"model", &saved}}).has_value());  // Now the lock is first's.
  run_in_process(2, [&](ProcessGroup& world) {
    Tensors loaded;
    Checkpointer second(root(), world);
    const std::string message = error_of(
        [&] {
          second.resume({{"model", &loaded}});
        },
        Fault::system);
    EXPECT_TRUE(contains(message, root().string() + ": another job")) << message;
    EXPECT_TRUE(contains(message, "pid " + std::to_string(::getpid()) + " on \"" + host_name()))
        << message;
  });
  first.save(1, {{"model", &saved}});
}

TEST_F(Checkpoints, AreLockedAgainInARecreatedFolder) {
  Tensors saved(some_state(1));
  Checkpointer first(root(), ProcessGroup::self()), second(root(), ProcessGroup::self());
  first.save(1, {{"model", &saved}});
  fs::remove_all(root());
  first.save(2, {{"model", &saved}});
  const auto refuses_second = [&] {
    error_of([&] { second.save(3, {{"model", &saved}}); }, Fault::system);
  };
  refuses_second();
  fs::remove(root() / ".lock");
  first.save(4, {{"model", &saved}});
  refuses_second();
}

TEST_F(Checkpoints, RemoveWhatAKilledJobLeft) {
  Tensors saved(some_state(1));
  fs::create_directories(root() / "step-0000000007.tmp-0badcafe");
  std::ofstream(root() / "step-0000000007.tmp-0badcafe" / "model-00001-of-00001.safetensors");
  fs::create_symlink("step-0000000007", root() / "latest.tmp-12345678");
  fs::create_directories(root() / "latest.tmp-of-somebody");
  fs::create_directories(root() / "step-back.tmp-mine");
  fs::create_directories(root() / "notes");
  Checkpointer checkpoints(root(), ProcessGroup::self());
  EXPECT_FALSE(checkpoints.resume({{"model", &saved}}).has_value());
  checkpoints.save(8, {{"model", &saved}});
  EXPECT_EQ(names_in(root()), (std::set<std::string>{"latest", "latest.tmp-of-somebody", "notes",
                                                     "step-0000000008", "step-back.tmp-mine"}));
}

TEST_F(Checkpoints, FailOnAllRanksWhenOneRankThrows) {
  class Broken : public Tensors {
   public:
    using Tensors::Tensors;
    StateDict state_dict() override { throw std::runtime_error("no state today\nat frame 0"); }
  };
  run_in_process(2, [&](ProcessGroup& world) {
    Tensors good(some_state(1));
    Broken broken;
    Checkpointer checkpoints(root(), world);
    Stateful* const state = world.rank() == 1 ? &broken : static_cast<Stateful*>(&good);
    if (world.rank() == 1) {
      EXPECT_THROW(checkpoints.save(1, {{"model", state}}), std::runtime_error);
    } else {
      EXPECT_TRUE(contains(error_of(
                               [&] {
                                 checkpoints.save(1, {{"model", state}});
                               },
                               Fault::aborted),
                           "rank 1: no state today"));
    }
    world.barrier();
    EXPECT_EQ(names_in(root()), std::set<std::string>{});
    world.barrier();
    checkpoints.save(1, {{"model", &good}});
  });
}

}  // namespace
}  // namespace lockstep::checkpoint::checkpointer_test
