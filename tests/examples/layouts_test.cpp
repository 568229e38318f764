// Trains a GPT with pipelines, replicas, tensor parallel and fully sharded ranks. Results are
// equal, and each layout continues from a checkpoint of any other.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/train/training_state.h"
#include "tests/ranks.h"

namespace lockstep::examples::layouts_test {
namespace {

struct Layout {
  std::string name;
  int pp = 1, dp = 1, tp = 1;
  bool fsdp = false;
  PipelineSchedule schedule = PipelineSchedule::gpipe;

  int ranks() const { return pp * dp * tp; }
};

// Each kind of schedule once.
const std::vector<Layout> layouts{
    {"1"},
    {"dp2", 1, 2},
    {"dp4", 1, 4},
    {"tp2", 1, 1, 2},
    {"tp4", 1, 1, 4},
    {"pp2", 2, 1, 1, false, PipelineSchedule::one_f_one_b},
    {"pp4", 4, 1, 1, false, PipelineSchedule::zero_bubble},
    {"fsdp4", 1, 4, 1, true},
    {"dp2tp2", 1, 2, 2},
    {"tp2pp2", 2, 1, 2, false, PipelineSchedule::zbv},
    {"fsdp2tp2", 1, 2, 2, true},
    {"dp2pp2", 2, 2, 1, false, PipelineSchedule::interleaved},
};
const std::vector<Layout> three_dimensional{
    {"dp2tp2pp2", 2, 2, 2, false, PipelineSchedule::one_f_one_b},
    {"fsdp2tp2pp2", 2, 2, 2, true, PipelineSchedule::looped_bfs},
    {"fsdp2pp2", 2, 2, 1, true, PipelineSchedule::zero_bubble},
};

constexpr std::int64_t vocabulary = 40, length = 8, rows = 8;

// Threads of one process share the default generator, so initial weights depend on their positions.
void fill(const NamedTensors& parameters) {
  const torch::NoGradGuard no_grad;
  for (auto [name, parameter] : parameters) {
    const auto places = torch::arange(parameter.numel(), torch::kDouble) * 0.37;
    parameter.copy_(places.sin().view(parameter.sizes()) * 0.1);
    if (parameter.dim() == 1 && name.ends_with("weight")) parameter.add_(1);
  }
}

class Training {
 public:
  Training(const Layout& layout, const ProcessGroup& world, bool recompute)
      : mesh_(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}}),
        pipeline_(layers(recompute), mesh_["pp"], options(layout)) {
    const torch::optim::AdamWOptions adamw(1e-2);
    if (layout.fsdp) {
      auto sharded = std::make_unique<FullyShardedOptimizer<AdamW>>(*pipeline_.data_parallel(),
                                                                    pipeline_.parameters(), adamw);
      clip_ = [this, it = sharded.get()] { pipeline_.clip_grad_norm_(*it, 0.5); };
      adamw_ = std::move(sharded);
    } else {
      adamw_ = std::make_unique<AdamW>(pipeline_.parameters(), adamw);
      clip_ = [this] { pipeline_.clip_grad_norm_(0.5); };
    }
    state.add("model", pipeline_);
    state.add("optimizer", *adamw_, pipeline_);
  }

  double step(int number) {
    const auto text = ((torch::arange(rows * (length + 1)).view({rows, length + 1}) * 7 +
                        torch::arange(rows).unsqueeze(1) * 5 + 3 * number) %
                       vocabulary)
                          .chunk(mesh_.size("dp"))[static_cast<std::size_t>(mesh_.rank("dp"))];
    adamw_->zero_grad();
    const double loss = pipeline_.step(text.slice(1, 0, -1), [&](const torch::Tensor& logits,
                                                                 const Microbatch& part) {
      return cross_entropy(logits.flatten(0, 1), part.of(text.slice(1, 1)).flatten(), mesh_["tp"]);
    });
    clip_();
    adamw_->step();
    std::vector<double> mean{loss};
    mesh_["dp"].all_reduce(buffer_of(mean), ReduceOp::average);
    return mean[0];
  }

  std::vector<double> steps(int from, int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step(from + i));
    return losses;
  }

  TrainingState state;

 private:
  LayerList layers(bool recompute) const {
    const LayerList random = gpt_layers({.vocabulary = vocabulary,
                                         .block_size = length,
                                         .layers = 3,
                                         .heads = 4,
                                         .width = 16,
                                         .recompute = recompute});
    LayerList layers;
    for (std::size_t i = 0; i < random.size(); ++i)
      layers.add(random.name(i), [random, i] {
        auto layer = random.make(i);
        layer.module->to(torch::kDouble);
        fill(named_parameters(*layer.module));
        return layer;
      });
    for (const auto& [parameter, same_as] : random.ties()) layers.tie(parameter, same_as);
    if (mesh_.size("tp") > 1) layers.parallelize(mesh_["tp"], gpt_layers_plan());
    return layers;
  }

  PipelineOptions options(const Layout& layout) const {
    PipelineOptions options{.schedule = layout.schedule, .microbatches = 2};
    if (layout.dp > 1 || layout.fsdp) options.data_parallel = mesh_["dp"];
    if (layout.fsdp) options.fully_sharded = {.units = {"transformer.h.*"}};
    return options;
  }

  const DeviceMesh mesh_;
  Pipeline pipeline_;
  std::unique_ptr<torch::optim::Optimizer> adamw_;
  std::function<void()> clip_;
};

// All of a checkpoint.
struct Whole : Stateful {
  StateDict state_dict() override { return all; }
  StateRequest wanted(const StateDict& saved) override { return everything(saved); }
  void load_state_dict(StateDict state) override { all = std::move(state); }
  StateDict all;
};

void expect_same(const std::filesystem::path& one, const std::filesystem::path& other) {
  run_in_process(1, [&](ProcessGroup& world) {
    Whole model[2], optimizer[2];
    const std::filesystem::path paths[2]{one, other};
    for (int i = 0; i < 2; ++i) {
      TrainingState state;
      state.add("model", model[i]);
      state.add("optimizer", optimizer[i]);
      ASSERT_TRUE(Checkpointer(paths[i], world).resume(state));
    }
    for (const auto* pair : {model, optimizer}) {
      EXPECT_EQ(pair[0].all.values, pair[1].all.values);
      ASSERT_EQ(pair[0].all.tensors.size(), pair[1].all.tensors.size());
      for (const auto& [name, tensor] : pair[0].all.tensors)
        EXPECT_TRUE(torch::equal(tensor.data, pair[1].all.tensors.at(name).data)) << name;
    }
  });
}

// Uses double: AdamW's steps do not shrink with small gradients, whose rounding, different in each
// layout, moves a weight. In float, losses differ by about 1e-5.
void expect_near(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-6) << "step " << i;
}

void save(Training& training, const std::filesystem::path& path, const ProcessGroup& world) {
  Checkpointer checkpoints(path, world);
  checkpoints.save(2, training.state);
  checkpoints.wait();
}

// Saves initial weights, and returns the losses of one process.
std::vector<double> make_first(const std::filesystem::path& first) {
  std::vector<double> losses;
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(layouts.front(), world, false);
    training.step(-1);  // Gives the optimizer a state.
    save(training, first, world);
    losses = training.steps(0, 6);
  });
  return losses;
}

TEST(Layouts, MatchOneProcessInThreeDimensions) {
  const test::ScratchDirectory scratch;
  std::vector<double> losses = make_first(scratch.path() / "first");
  const double next = losses.back();
  losses.pop_back();
  EXPECT_GT(losses.front() - losses.back(), 0.1);
  for (const Layout& layout : three_dimensional)
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(layout.name);
      const auto saved = scratch.path() / (layout.name + (recompute ? "-recomputed" : ""));
      run_in_process(layout.ranks(), [&](ProcessGroup& world) {
        Training training(layout, world, recompute);
        ASSERT_TRUE(Checkpointer(scratch.path() / "first", world).resume(training.state));
        expect_near(training.steps(0, 5), losses);
        save(training, saved, world);
      });
      run_in_process(1, [&](ProcessGroup& world) {
        Training training(layouts.front(), world, false);
        ASSERT_TRUE(Checkpointer(saved, world).resume(training.state));
        expect_near({training.step(5)}, {next});
      });
    }
}

TEST(Layouts, EachContinuesFromAnyOther) {
  const test::ScratchDirectory scratch;
  std::vector<double> losses = make_first(scratch.path() / "first");
  losses.pop_back();
  for (const Layout& layout : layouts)
    run_in_process(layout.ranks(), [&](ProcessGroup& world) {
      Training training(layout, world, /*recompute=*/true);
      ASSERT_TRUE(Checkpointer(scratch.path() / "first", world).resume(training.state));
      std::vector<double> own = training.steps(0, 2);
      save(training, scratch.path() / layout.name, world);
      for (const double loss : training.steps(2, 3)) own.push_back(loss);
      expect_near(own, losses);
    });
  const std::vector<double> last(losses.begin() + 2, losses.end());
  for (const Layout& layout : layouts) {
    run_in_process(layout.ranks(), [&](ProcessGroup& world) {
      Training training(layout, world, /*recompute=*/false);
      for (const Layout& saved : layouts) {
        SCOPED_TRACE(saved.name + " loaded by " + layout.name);
        ASSERT_TRUE(Checkpointer(scratch.path() / saved.name, world).resume(training.state));
        save(training, scratch.path() / (saved.name + "-" + layout.name), world);
        expect_near(training.steps(2, 3), last);
      }
    });
    for (const Layout& saved : layouts) {
      SCOPED_TRACE(saved.name + " loaded by " + layout.name);
      expect_same(scratch.path() / saved.name, scratch.path() / (saved.name + "-" + layout.name));
    }
  }
}

}  // namespace
}  // namespace lockstep::examples::layouts_test
