// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/on_meta.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/train/training_state.h"
#include "tests/fault_of.h"
#include "tests/memory_limit.h"
#include "tests/ranks.h"
#include "tests/rigs/large_module.h"

namespace lockstep::train::load_weights_test {
namespace {

namespace fs = std::filesystem;

using test::fault_of;
using test::LargeModule;
using test::Rank;
using test::Ranks;

struct Net : torch::nn::Module {
  Net() {
    register_module("embedding", embedding);
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(26, 26));
    register_module("blocks", blocks);
    register_module("norm", norm);
    tied = register_parameter("tied", embedding->weight);
    scale = register_parameter("scale", torch::randn({26}, torch::kDouble));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding->forward(tokens);
    for (const auto& block : *blocks)
      x = x + torch::gelu(block->as<torch::nn::Linear>()->forward(x));
    return (norm->forward(x) * scale).matmul(tied.t().to(torch::kDouble));
  }

  torch::nn::Embedding embedding{31, 26};
  torch::nn::ModuleList blocks;
  torch::nn::BatchNorm1d norm{26};
  torch::Tensor tied, scale;
};

const auto make = [] { return std::make_shared<Net>(); };

torch::Tensor tokens() { return torch::arange(20, torch::kLong); }

std::shared_ptr<Net> source() {
  torch::manual_seed(4);
  auto net = make();
  net->forward(tokens());  // The running statistics change.
  return net;
}

// Runs work on rank 0; the other ranks see its results.
void on_rank_0(const ProcessGroup& world, const std::function<void()>& work) {
  if (world.rank() == 0) work();
  world.barrier();
}

// Tensors that belong to file number `file` of `files`.
NamedTensors part_of(const torch::nn::Module& net, std::size_t file, std::size_t files) {
  NamedTensors part;
  const NamedTensors all = named_tensors(net);
  for (std::size_t i = file; i < all.size(); i += files) part.push_back(all[i]);
  return part;
}

struct Loaded {
  explicit Loaded(const ProcessGroup& world)
      : net(on_meta(make)), fsdp(net, world, {.units = {"blocks.*"}}) {}

  const std::shared_ptr<Net> net;
  FullyShardedDataParallel<Net> fsdp;
};

// --- Kinds of files ------------------------------------------------------------------------------

const Ranks kinds("load_weights: kinds", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  const std::string digest = sha256(*saved);
  FullyShardedDataParallel first(saved, world);
  TrainingState state;
  state.add("model", first);
  state.add("other", first);
  Checkpointer checkpoints(rank.scratch / "run", world);
  checkpoints.save(3, state);
  on_rank_0(world, [&] {
    save_weights(*saved, rank.scratch / "one.safetensors");
    NamedTensors once;  // Like Python's save_model().
    for (const auto& each : named_tensors(*saved))
      if (each.first != "tied") once.push_back(each);
    save_safetensors(rank.scratch / "once.safetensors", once);
    fs::create_directory(rank.scratch / "several");
    for (const std::size_t file : {0, 1, 2})
      save_safetensors(rank.scratch / "several" / ("part-" + std::to_string(file) + ".safetensors"),
                       part_of(*saved, file, 3));
  });
  save_weights(first, rank.scratch / "shards", {.max_shard_bytes = 3000});
  for (const char* path :
       {"one.safetensors", "once.safetensors", "several", "run", "run/step-0000000003",
        "run/latest", "shards", "shards/model.safetensors.index.json"}) {
    Loaded loaded(world);
    load_weights(loaded.fsdp, rank.scratch / path);
    EXPECT_EQ(sha256(*loaded.net), digest) << path;
    EXPECT_EQ(loaded.net->tied.data_ptr(), loaded.net->embedding->weight.data_ptr());
    loaded.fsdp(tokens()).sum().backward();
  }
  Loaded loaded(world);
  load_weights(loaded.fsdp, rank.scratch / "run", {.part = "other"});
  EXPECT_EQ(sha256(*loaded.net), digest);

  DistributedDataParallel plain(make(), world);
  load_weights(plain, rank.scratch / "one.safetensors");
  EXPECT_EQ(sha256(*plain.module()), digest);
  destroy_process_group(world);
});

TEST(LoadWeights, TakesFilesFoldersAndCheckpoints) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(kinds.run(ranks))) << ranks;
}

// Each rank compares its fragments with the float32 weights.
const Ranks masters("load_weights: masters", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  on_rank_0(world, [&] { save_weights(*saved, rank.scratch / "one.safetensors"); });
  const auto net = on_meta(make);
  FullyShardedDataParallel fsdp(net, world,
                                {.units = {"blocks.*"}, .param_type = torch::kBFloat16});
  EXPECT_EQ(net->blocks[0]->parameters()[0].scalar_type(), torch::kBFloat16);
  load_weights(fsdp, rank.scratch / "one.safetensors");
  const auto whole = saved->named_parameters();
  const auto state = state_of(fsdp);
  for (const auto& [name, tensor] : state->state_dict().tensors) {
    if (!whole.contains(name)) continue;
    const torch::Tensor flat = whole[name].detach().flatten();
    const auto begin = static_cast<std::int64_t>(tensor.begin);
    EXPECT_TRUE(
        torch::equal(tensor.data.flatten(), flat.slice(0, begin, begin + tensor.data.numel())))
        << name;
  }
  fsdp.with_gathered([&] {
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), whole[item.key()].to(item.value().scalar_type())))
          << item.key();
  });
  destroy_process_group(world);
});

TEST(LoadWeights, GivesFloatMastersOfBfloat16ParametersAllTheirBits) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(masters.run(ranks))) << ranks;
}

const Ranks named("load_weights: named", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  const fs::path file = rank.scratch / "theirs.safetensors";
  on_rank_0(world, [&] {
    NamedTensors theirs{{"surplus", torch::ones({3})}};
    for (const auto& [name, tensor] : named_tensors(*saved))
      theirs.emplace_back("model." + name, name.starts_with("blocks") && tensor.dim() == 2
                                               ? tensor.detach().t().contiguous()
                                               : tensor.detach());
    save_safetensors(file, theirs);
  });
  const NameTable names{
      {.pattern = "surplus", .ignore = true},
      {.pattern = R"(model\.(blocks.+weight))", .replacement = "$1", .transpose = true},
      {.pattern = R"(model\.(.+))", .replacement = "$1"}};
  Loaded loaded(world);
  load_weights(loaded.fsdp, file, {.names = names});
  EXPECT_EQ(sha256(*loaded.net), sha256(*saved));
  destroy_process_group(world);
});

TEST(LoadWeights, TakesNamesAndMatricesOfOtherPrograms) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(named.run(ranks))) << ranks;
}

// --- Conversion, and tensors that are missing ----------------------------------------------------

// Tensors of `net` in bfloat16 without the norm, which is a new head.
NamedTensors body_in_bfloat16(const torch::nn::Module& net) {
  NamedTensors body;
  for (const auto& [name, tensor] : named_tensors(net))
    if (!name.starts_with("norm.")) body.emplace_back(name, tensor.detach().to(torch::kBFloat16));
  return body;
}

void expect_body(const torch::nn::Module& net, const NamedTensors& body) {
  const NamedTensors tensors = named_tensors(net);
  const std::map<std::string, torch::Tensor> by_name(tensors.begin(), tensors.end());
  for (const auto& [name, tensor] : body)
    EXPECT_TRUE(by_name.at(name).equal(tensor.to(by_name.at(name).scalar_type()))) << name;
  EXPECT_TRUE(by_name.at("norm.weight").equal(torch::ones({26}))) << "the head has changed";
}

const Ranks converted("load_weights: converted", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const NamedTensors body = body_in_bfloat16(*source());
  const fs::path file = rank.scratch / "body.safetensors";
  on_rank_0(world, [&] { save_safetensors(file, body); });
  const LoadWeightsOptions options{.convert_types = true, .may_be_missing = {R"(norm\..+)"}};
  const std::size_t head = 5;  // Parameters and buffers of the norm.

  Loaded loaded(world);
  std::string text;
  EXPECT_EQ(fault_of([&] { load_weights(loaded.fsdp, file, options); }, &text), Fault::misuse);
  EXPECT_NE(text.find("has no value yet"), text.npos) << text;
  loaded.fsdp.initialize(make);
  EXPECT_EQ(fault_of([&] { load_weights(loaded.fsdp, file, {.convert_types = true}); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("may_be_missing"), text.npos) << text;
  EXPECT_EQ(load_weights(loaded.fsdp, file, options).kept.size(), head);
  loaded.fsdp.with_gathered([&] { expect_body(*loaded.net, body); });

  for (const bool shares : {false, true}) {
    const auto net = make();
    DistributedDataParallel ddp(net, world, {.share_parameters = shares});
    EXPECT_EQ(load_weights(ddp, file, options).kept.size(), head);
    expect_body(*net, body);
  }
  const auto plain = make();
  EXPECT_EQ(load_weights(*plain, file, options).kept.size(), head);
  expect_body(*plain, body);
  destroy_process_group(world);
});

TEST(LoadWeights, ConvertsTypesAndKeepsANewHeadInEveryKindOfModel) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(converted.run(ranks))) << ranks;
}

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
  nn::Linear up{8, 12}, down{12, 6};
};

// Parts of a weight whose whole is on the disk.
const Ranks cut("load_weights: cut", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
  torch::manual_seed(1);
  const auto whole = std::make_shared<Mlp>();
  on_rank_0(world, [&] {
    save_weights(*whole, rank.scratch / "mlp.safetensors");
    NamedTensors turned;
    for (const auto& [name, tensor] : named_tensors(*whole))
      turned.emplace_back(
          name, tensor.detach().dim() == 2 ? tensor.detach().t().contiguous() : tensor.detach());
    save_safetensors(rank.scratch / "turned.safetensors", turned);
  });
  const NameTable turn{{.pattern = ".+weight", .transpose = true}};
  for (const bool is_turned : {false, true}) {
    torch::manual_seed(2);
    const auto net = std::make_shared<Mlp>();
    parallelize_module(*net, mesh["tp"], {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    FullyShardedDataParallel fsdp(net, mesh["dp"]);
    load_weights(fsdp, rank.scratch / (is_turned ? "turned.safetensors" : "mlp.safetensors"),
                 {.names = is_turned ? turn : NameTable()});
    for (const auto& [name, tensor] : whole_tensors(*net))
      EXPECT_TRUE(torch::equal(tensor, whole->named_parameters()[name])) << name;
  }
  destroy_process_group(world);
});

TEST(LoadWeights, GivesEachRankItsPartOfWeightsThatAreCut) {
  EXPECT_TRUE(all_succeeded(cut.run(4)));
}

// Without FullyShardedDataParallel, and back into files.
const Ranks cut_alone("load_weights: cut alone", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  torch::manual_seed(1);
  const auto whole = std::make_shared<Mlp>();
  on_rank_0(world, [&] {
    save_weights(*whole, rank.scratch / "half", {.max_shard_bytes = 300, .type = torch::kHalf});
    save_weights(*whole, rank.scratch / "whole.safetensors");
  });
  const auto net = std::make_shared<Mlp>();
  parallelize_module(*net, world, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
  load_weights(*net, rank.scratch / "whole.safetensors");
  for (const auto& [name, tensor] : whole_tensors(*net))
    EXPECT_TRUE(torch::equal(tensor, whole->named_parameters()[name])) << name;
  save_weights(*net, rank.scratch / "again", world, {.max_shard_bytes = 300});
  const auto again = std::make_shared<Mlp>();
  load_weights(*again, rank.scratch / "again");
  EXPECT_EQ(sha256(*again), sha256(*whole));
  load_weights(*net, rank.scratch / "half", world, {.convert_types = true});
  for (const auto& [name, tensor] : whole_tensors(*net))
    EXPECT_TRUE(
        torch::equal(tensor, whole->named_parameters()[name].to(torch::kHalf).to(torch::kFloat)))
        << name;
  destroy_process_group(world);
});

TEST(LoadWeights, GivesEachRankItsPartOfAPlainModuleThatIsCut) {
  EXPECT_TRUE(all_succeeded(cut_alone.run(2)));
}

// --- Memory --------------------------------------------------------------------------------------

const Ranks limited("load_weights: limited", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const test::MemoryLimit limit(std::size_t{48} << 20);
  const fs::path file = rank.scratch / "large.safetensors";
  const auto net = on_meta([] { return std::make_shared<LargeModule>(); });
  FullyShardedDataParallel fsdp(net, world);
  fsdp.initialize([](const std::string&, torch::Tensor& tensor) { tensor.normal_(); });
  const std::string digest = sha256(*net);
  on_rank_0(world, [&] { save_weights(*net, file); });
  TrainingState state;
  state.add("model", fsdp);
  Checkpointer checkpoints(rank.scratch / "run", world);
  checkpoints.save(1, state);

  const auto expect_loaded = [&](const std::function<void()>& load) {
    fsdp.initialize([](const std::string&, torch::Tensor& tensor) { tensor.zero_(); });
    load();
    EXPECT_EQ(sha256(*net), digest);
  };
  expect_loaded([&] { load_weights(fsdp, file); });
  expect_loaded([&] { load_weights(fsdp, rank.scratch / "run"); });
  expect_loaded([&] { checkpoints.resume(state); });
  EXPECT_THROW(load_safetensors(file), std::exception);
  destroy_process_group(world);
});

TEST(LoadWeights, AndResumptionNeedNoMemoryForACopy) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(limited.run(ranks))) << ranks;
}

// --- A checkpoint and a module on meta -----------------------------------------------------------

const Ranks resumed("load_weights: resumed", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  FullyShardedDataParallel first(saved, world);
  TrainingState state;
  state.add("model", first);
  Checkpointer checkpoints(rank.scratch, world);
  checkpoints.save(1, state);

  Loaded loaded(world);
  TrainingState other;
  other.add("model", loaded.fsdp);
  std::string text;
  EXPECT_EQ(fault_of([&] { checkpoints.save(2, other); }, &text), Fault::misuse);
  EXPECT_NE(text.find("has no value yet"), text.npos) << text;
  ASSERT_TRUE(checkpoints.resume(other));
  EXPECT_TRUE(loaded.fsdp.is_initialized());
  EXPECT_EQ(sha256(*loaded.net), sha256(*saved));
  loaded.fsdp(tokens()).sum().backward();
  destroy_process_group(world);
});

TEST(LoadWeights, ACheckpointerGivesValuesToo) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(resumed.run(ranks))) << ranks;
}

// --- Errors --------------------------------------------------------------------------------------

const Ranks mismatches("load_weights: mismatches", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  const fs::path file = rank.scratch / "other.safetensors";
  on_rank_0(world, [&] {
    NamedTensors others;
    for (const auto& [name, tensor] : named_tensors(*saved)) {
      if (name == "blocks.1.weight") continue;
      others.emplace_back(name, name == "blocks.0.weight" ? torch::ones({3, 26})
                                : name == "scale"         ? tensor.to(torch::kFloat)
                                                          : tensor.detach());
    }
    others.emplace_back("surplus", torch::ones({2}));
    save_safetensors(file, others);
  });
  Loaded loaded(world);
  std::string text;
  EXPECT_EQ(fault_of([&] { load_weights(loaded.fsdp, file); }, &text), Fault::misuse);
  for (const char* part :
       {"other.safetensors: ", R"("blocks.1.weight" is not in the file)",
        R"("surplus" is not in the module)",
        R"("blocks.0.weight" is Float [3, 26] in the file, Float [26, 26] in the module)",
        R"("scale" is Float [26] in the file, Double [26] in the module)", "convert_types"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in: " << text;
  EXPECT_FALSE(loaded.fsdp.is_initialized());

  const auto net = source();
  FullyShardedDataParallel initialized(net, world);
  const std::string before = sha256(*net);
  EXPECT_EQ(fault_of([&] { load_weights(initialized, file); }), Fault::misuse);
  EXPECT_EQ(sha256(*net), before);
  destroy_process_group(world);
});

TEST(LoadWeights, NamesAllThatDoesNotFitAndChangesNothing) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(mismatches.run(ranks))) << ranks;
}

// Changes the last byte of a file.
void damage(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
}

const Ranks broken("load_weights: broken", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  FullyShardedDataParallel first(saved, world);
  TrainingState state;
  state.add("model", first);
  Checkpointer(rank.scratch / "run", world).save(1, state);
  on_rank_0(world, [&] {
    save_weights(*saved, rank.scratch / "short.safetensors");
    fs::resize_file(rank.scratch / "short.safetensors",
                    fs::file_size(rank.scratch / "short.safetensors") - 1);
    for (const auto& entry : fs::directory_iterator(rank.scratch / "run/step-0000000001"))
      if (entry.path().extension() == ".safetensors") damage(entry.path());
    save_safetensors(rank.scratch / "untied.safetensors", [&] {
      NamedTensors tensors = named_tensors(*saved);
      for (auto& [name, tensor] : tensors)
        if (name == "tied") tensor = tensor.detach() + 1;
      return tensors;
    }());
    fs::create_directory(rank.scratch / "nothing");
  });
  const auto refuse = [&](const char* path, Fault fault, const std::string& part) {
    Loaded loaded(world);
    std::string text;
    EXPECT_EQ(fault_of([&] { load_weights(loaded.fsdp, rank.scratch / path); }, &text), fault);
    EXPECT_NE(text.find(part), text.npos) << text;
    EXPECT_FALSE(loaded.fsdp.is_initialized()) << path;
  };
  refuse("missing.safetensors", Fault::system, "missing.safetensors");
  refuse("short.safetensors", Fault::corrupt, "short.safetensors");
  refuse("run", Fault::corrupt, "the weights are half loaded now");
  refuse("nothing", Fault::misuse, "holds no weights");
  refuse("untied.safetensors", Fault::mismatch, "are one tensor in the module");
  destroy_process_group(world);
});

TEST(LoadWeights, DamagedOrMissingFilesAreErrorsOnAllRanks) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(broken.run(ranks))) << ranks;
}

const Ranks disagreeing("load_weights: disagreeing", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto saved = source();
  on_rank_0(world, [&] {
    for (const char* name : {"0.safetensors", "1.safetensors"})
      save_weights(*saved, rank.scratch / name);
  });
  Loaded loaded(world);
  std::string text;
  const auto refuse = [&](const fs::path& file, const LoadWeightsOptions& options) {
    EXPECT_EQ(fault_of([&] { load_weights(loaded.fsdp, file, options); }, &text), Fault::mismatch);
  };
  refuse(rank.scratch / (std::to_string(rank.rank) + ".safetensors"), {});
  EXPECT_NE(text.find("1.safetensors on rank 1"), text.npos) << text;
  refuse(rank.scratch / "0.safetensors", {.part = rank.rank == 0 ? "model" : "other"});
  EXPECT_NE(text.find("the part"), text.npos) << text;
  load_weights(loaded.fsdp, rank.scratch / "0.safetensors");  // The group is usable.
  EXPECT_EQ(sha256(*loaded.net), sha256(*saved));
  destroy_process_group(world);
});

TEST(LoadWeights, RanksThatDisagreeAreAMismatch) { EXPECT_TRUE(all_succeeded(disagreeing.run(2))); }

}  // namespace
}  // namespace lockstep::train::load_weights_test
