// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weight_files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_index.h"
#include "lockstep/checkpoint/weight_fit.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"

namespace lockstep::checkpoint::weight_files_test {
namespace {

namespace fs = std::filesystem;

std::string error_of(const std::function<void()>& action, Fault fault) {
  std::string text;
  EXPECT_EQ(test::fault_of(action, &text), fault) << text;
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// --- The index -----------------------------------------------------------------------------------

std::string refusal(const std::string& json) {
  return error_of([&] { parse_safetensors_index("index", json); }, Fault::corrupt);
}

TEST(SafetensorsIndex, MapsNamesToFilesAndIgnoresTheRest) {
  const auto index = parse_safetensors_index(
      "index",
      R"({"more": [1, {"weight_map": "x"}, null], "weight_map": {"a": "1.safetensors",)"
      R"( "b": "sub/2.safetensors"}, "metadata": {"size": 1.5e3, "deep": {"list": [true]}}})");
  EXPECT_EQ(index, (SafetensorsIndex{{"a", "1.safetensors"}, {"b", "sub/2.safetensors"}}));
  EXPECT_EQ(parse_safetensors_index("index", format_safetensors_index(index, 9)), index);
}

TEST(SafetensorsIndex, RefusesAnythingElseInItsMap) {
  EXPECT_TRUE(contains(refusal("{}"), "no weight_map"));
  EXPECT_TRUE(contains(refusal("[]"), "unexpected array"));
  EXPECT_TRUE(contains(refusal("7"), "unexpected number"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": 7})"), "unexpected number"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": {"a": 7}})"), R"(tensor "a": unexpected number)"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": {"a": {}}})"), "unexpected object"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": {"a": "f", "a": "f"}})"), "occurs twice"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": {}, "weight_map": {}})"), "occurs twice"));
  EXPECT_TRUE(contains(refusal(R"({"weight_map": {"a": "f"})"), "not JSON"));
}

TEST(SafetensorsIndex, NamesOnlyFilesOfItsFolder) {
  for (const char* file : {"/etc/passwd", "../other.safetensors", "a/../../b", "", "a/"})
    EXPECT_TRUE(contains(refusal(std::string(R"({"weight_map": {"a": ")") + file + "\"}}"),
                         "does not lie in the folder"))
        << file;
}

// --- Folders -------------------------------------------------------------------------------------

std::shared_ptr<torch::nn::SequentialImpl> small_net() {
  return std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(4, 3),
                                                     torch::nn::BatchNorm1d(3));
}

class CountedState final : public Stateful {
 public:
  explicit CountedState(torch::nn::Module& module) : state_(state_of(module)) {}

  int saved() const { return saved_; }
  StateDict state_dict() override {
    ++saved_;
    return state_->state_dict();
  }
  StateRequest wanted(const StateDict& saved) override { return state_->wanted(saved); }
  void load_state_dict(StateDict state) override { state_->load_state_dict(std::move(state)); }

 private:
  const std::unique_ptr<Stateful> state_;
  int saved_ = 0;
};

class Folder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    write_file((folder_ / name).string(), text);
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.insert(entry.path().filename().string());
    return names;
  }

  const test::ScratchDirectory scratch_;
  const fs::path folder_ = scratch_.path();
  const std::shared_ptr<torch::nn::SequentialImpl> saved_ = small_net();
  const std::shared_ptr<torch::nn::SequentialImpl> net_ = small_net();
};

TEST_F(Folder, IsWrittenInShardsWithAnIndexAndReadBack) {
  save_weights(*saved_, folder_, {.max_shard_bytes = 50});
  EXPECT_EQ(names(), (std::set<std::string>{
                         "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                         "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  for (const fs::path& path : {folder_, folder_ / "model.safetensors.index.json"}) {
    const auto net = small_net();
    load_weights(*net, path);
    EXPECT_EQ(sha256(*net), sha256(*saved_));
  }
  const WeightFiles files(folder_);
  EXPECT_EQ(files.files().size(), 3U);
  EXPECT_EQ(files.tensors().size(), 7U);
}

TEST_F(Folder, HasOneFileForASmallModelAndNoOlderFiles) {
  save_weights(*small_net(), folder_, {.max_shard_bytes = 1});
  write("config.json", "{}");
  write("adapter_model.safetensors", "not a part");
  save_weights(*saved_, folder_, SaveWeightsOptions{});
  EXPECT_EQ(names(), (std::set<std::string>{"adapter_model.safetensors", "config.json",
                                            "model.safetensors"}));
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
}

TEST_F(Folder, IsReadAccordingToItsIndex) {
  save_weights(*saved_, folder_, {.max_shard_bytes = 50});
  // Would be an Error without the index.
  save_safetensors(folder_ / "consolidated.safetensors", named_tensors(*small_net()));
  save_safetensors(folder_ / "model.safetensors", {{"surplus", at::ones({1})}});
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));

  write("model.safetensors.index.json", R"({"weight_map": {"0.weight": "1.safetensors"}})");
  EXPECT_TRUE(contains(error_of([&] { load_weights(*net_, folder_); }, Fault::system),
                       R"("1.safetensors", which is missing)"));
  write("model.safetensors.index.json", R"({"weight_map": {"0.weight": "model.safetensors"}})");
  EXPECT_TRUE(contains(error_of([&] { load_weights(*net_, folder_); }, Fault::corrupt),
                       R"("0.weight" is not in its file "model.safetensors")"));
  write("model.safetensors.index.json",
        R"({"weight_map": {"0.weight": "consolidated.safetensors"}})");
  EXPECT_TRUE(contains(error_of([&] { load_weights(*net_, folder_); }, Fault::misuse),
                       R"("0.bias" is not in the file)"));
}

TEST_F(Folder, WithoutAnIndexIsItsModelOrAllFilesTogether) {
  const NamedTensors all = named_tensors(*saved_);
  save_safetensors(folder_ / "a.safetensors", {all.begin(), all.begin() + 3});
  save_safetensors(folder_ / "b.safetensors", {all.begin() + 3, all.end()});
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
  save_safetensors(folder_ / "c.safetensors", {all.front()});
  EXPECT_TRUE(
      contains(error_of([&] { load_weights(*net_, folder_); }, Fault::misuse), "no index decides"));
  save_weights(*small_net(), folder_ / "model.safetensors");
  load_weights(*net_, folder_);
  EXPECT_NE(sha256(*net_), sha256(*saved_));
}

TEST_F(Folder, WithSeveralIndexesNeedsTheOneToRead) {
  for (const char* name : {"fp16", "fp32"})
    write("model." + std::string(name) + ".safetensors.index.json",
          R"({"weight_map": {"0.weight": "1.safetensors"}})");
  EXPECT_TRUE(
      contains(error_of([&] { load_weights(*net_, folder_); }, Fault::misuse), "several indexes"));
}

TEST_F(Folder, IsRefusedWithARemedyWhenItHoldsPickles) {
  const std::string remedy =
      "load them in Python and write them with save_pretrained() or safetensors.torch.save_file()";
  const std::string zip("PK\3\4archive/data.pkl", 20), pickle("\x80\2}q\0X\6\0\0\0w", 12);
  const std::pair<std::string, std::string> files[]{
      {"pytorch_model.bin", zip},
      {"pytorch_model-00001-of-00002.bin", zip},
      {"pytorch_model.bin.index.json",
       R"({"weight_map": {"0.weight": "pytorch_model-00001-of-00002.bin"}})"},
      {"model.pt", pickle},
      {"consolidated.00.pth", zip}};
  for (const auto& [name, content] : files) {
    const test::ScratchDirectory scratch;
    write_file((scratch.path() / name).string(), content);
    for (const fs::path& path : {scratch.path(), scratch.path() / name}) {
      const std::string message = error_of([&] { load_weights(*net_, path); }, Fault::misuse);
      EXPECT_TRUE(contains(message, name) && contains(message, remedy)) << message;
      EXPECT_EQ(message.find(path.string()), message.rfind(path.string())) << message;
    }
  }
  write("other.index.json", R"({"weight_map": {"0.weight": "model.bin"}})");
  write("model.bin", zip);
  EXPECT_TRUE(contains(
      error_of([&] { load_weights(*net_, folder_ / "other.index.json"); }, Fault::misuse), remedy));
  // A name alone does not make a file a pickle.
  save_weights(*saved_, folder_ / "weights.bin");
  load_weights(*net_, folder_ / "weights.bin");
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
  error_of([&] { load_weights(*net_, folder_ / "absent.bin"); }, Fault::system);
}

TEST_F(Folder, NamesTheFormatOfAFileThatIsNotSafetensors) {
  const std::string zeros(600, '\0');
  const std::pair<std::string, std::string> cases[]{
      {"PK\3\4" + zeros, "but a zip archive, as of numpy.savez() and torch.save(): Lockstep does"},
      {std::string("\x80\4\x95\1\0\0\0\0\0\0\0N.", 13), "but a pickle of Python: Lockstep does"},
      {"\x1f\x8b\x08" + zeros, "but compressed by gzip: gunzip it"},
      {"Weights of a model\n", "but a text: name a file of weights"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
       "but a pointer of Git LFS, not the file itself: download the file"}};
  for (const auto& [bytes, text] : cases) {
    write("model.safetensors", bytes);
    for (const fs::path& path : {folder_, folder_ / "model.safetensors"}) {
      const std::string message = error_of([&] { load_weights(*net_, path); }, Fault::misuse);
      EXPECT_TRUE(contains(message, "model.safetensors: the file is not safetensors, " + text))
          << message;
      EXPECT_EQ(message.find(folder_.string()), message.rfind(folder_.string())) << message;
    }
    error_of([&] { load_safetensors(folder_ / "model.safetensors"); }, Fault::misuse);
  }
  write("model.safetensors", "");
  EXPECT_TRUE(
      contains(error_of([&] { load_weights(*net_, folder_); }, Fault::corrupt), "file is empty"));
}

TEST_F(Folder, WithoutWeightsIsRefusedWithItsContents) {
  const auto refusal = [&] {
    return error_of([&] { load_weights(*net_, folder_); }, Fault::misuse);
  };
  EXPECT_TRUE(contains(refusal(),
                       "holds no weights. It was searched for "
                       "model.safetensors.index.json, model.safetensors, other "
                       "*.safetensors, and a checkpoint of Lockstep"));
  EXPECT_TRUE(contains(refusal(), "It has no files"));
  for (const char* name : {"config.json", "README.md", "a.txt", "b.txt", "c.txt", "d.txt"})
    write(name, "{}");
  fs::create_directory(folder_ / "logs");
  EXPECT_TRUE(contains(refusal(), "It has README.md, a.txt, b.txt, c.txt, config.json and 2 more"));
  write("model.ckpt", "a pickle");
  EXPECT_TRUE(contains(refusal(), ". model.ckpt must be converted: Lockstep does not read"));
}

TEST_F(Folder, MayContainPicklesBesideCheckpoints) {
  Checkpointer(folder_, ProcessGroup::self()).save(1, {{"model", state_of(*saved_).get()}});
  write("best.pt", "a pickle");
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
}

// --- Types and names -----------------------------------------------------------------------------

TEST_F(Folder, MayHaveFloatingPointTypesThatAreConvertedOnRequest) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    save_weights(*saved_, folder_, {.type = type});
    const std::string message = error_of([&] { load_weights(*net_, folder_); }, Fault::misuse);
    EXPECT_TRUE(contains(message, "set LoadWeightsOptions::convert_types")) << message;
    EXPECT_TRUE(contains(message, R"("0.weight" is )")) << message;
    load_weights(*net_, folder_, {.convert_types = true});
    for (const auto& [name, tensor] : named_tensors(*saved_)) {
      const at::Tensor expected =
          tensor.is_floating_point() ? tensor.to(type).to(at::kFloat) : tensor;
      const NamedTensors loaded = named_tensors(*net_);
      const auto same =
          std::ranges::find(loaded, name, [](const auto& each) { return each.first; });
      EXPECT_TRUE(same->second.equal(expected)) << name;
    }
  }
  // Integers are never converted.
  NamedTensors integers = named_tensors(*saved_);
  integers[0].second = at::ones({3, 4}, at::kLong);
  save_safetensors(folder_ / "model.safetensors", integers);
  EXPECT_TRUE(contains(
      error_of([&] { load_weights(*net_, folder_, {.convert_types = true}); }, Fault::misuse),
      R"("0.weight" is Long [3, 4] in the file, Float [3, 4] in the module)"));
}

TEST_F(Folder, ConvertsLargeTensorsInChunks) {
  torch::nn::Module module;
  const at::Tensor values = at::randn({3, 1 << 20}).to(at::kBFloat16);
  const at::Tensor buffer = module.register_buffer("values", at::zeros({3, 1 << 20}));
  save_safetensors(folder_ / "model.safetensors", {{"values", values}});
  load_weights(module, folder_, {.convert_types = true});
  EXPECT_TRUE(buffer.equal(values.to(at::kFloat)));
  load_weights(module, folder_, {.names = {{.pattern = "values"}}, .convert_types = true});
  EXPECT_TRUE(buffer.equal(values.to(at::kFloat)));
}

TEST_F(Folder, LeavesAnOptionalMissingHeadUnchanged) {
  NamedTensors body;
  for (const auto& [name, tensor] : named_tensors(*saved_))
    if (!name.starts_with("1.")) body.emplace_back(name, tensor);
  body.emplace_back("head.weight", at::ones({2, 2}));
  save_safetensors(folder_ / "model.safetensors", body);
  const at::Tensor scale = net_->named_parameters()["1.weight"];
  const at::NoGradGuard no_grad;
  scale.fill_(7);
  const NameTable names{{.pattern = R"(head\..+)", .ignore = true}};
  EXPECT_TRUE(contains(error_of([&] { load_weights(*net_, folder_, names); }, Fault::misuse),
                       "set LoadWeightsOptions::may_be_missing"));
  error_of([&] { load_weights(*net_, folder_, {.names = names, .may_be_missing = {"1"}}); },
           Fault::misuse);  // A pattern is for the whole name.
  const LoadedWeights loaded =
      load_weights(*net_, folder_, {.names = names, .may_be_missing = {R"(1\..+)", "0.*"}});
  EXPECT_EQ(loaded.kept, (std::vector<std::string>{"1.bias", "1.num_batches_tracked",
                                                   "1.running_mean", "1.running_var", "1.weight"}));
  EXPECT_EQ(loaded.ignored, std::vector<std::string>{"head.weight"});
  EXPECT_TRUE(scale.equal(at::full({3}, 7.0)));
  EXPECT_TRUE(net_->parameters()[0].equal(saved_->parameters()[0]));
}

TEST(WeightFit, PutsClosestNamesSideBySide) {
  using Lines = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(side_by_side({"model.h.0.weight", "model.h.1.weight", "head.bias"},
                         {"h.1.weight", "an.unrelated.tensor", "h.0.weight", "h.0.masked_bias"}),
            (Lines{{"model.h.0.weight", "h.0.weight"},
                   {"model.h.1.weight", "h.1.weight"},
                   {"head.bias", "h.0.masked_bias"},
                   {"", "an.unrelated.tensor"}}));
  EXPECT_EQ(side_by_side({"a"}, {}), (Lines{{"a", ""}}));
}

TEST_F(Folder, ThatDoesNotFitListsNamesSideBySide) {
  NamedTensors others;
  for (const auto& [name, tensor] : named_tensors(*saved_))
    others.emplace_back(name == "0.weight" ? "0.kernel" : name, tensor);
  save_safetensors(folder_ / "model.safetensors", others);
  const std::string message = error_of([&] { load_weights(*net_, folder_); }, Fault::misuse);
  EXPECT_TRUE(
      contains(message, R"("0.weight" is not in the file | "0.kernel" is not in the module)"))
      << message;
  EXPECT_TRUE(contains(message, folder_.string())) << message;
}

TEST_F(Folder, WithOtherShapesIsRefusedWithTheRemedy) {
  const auto refusal_of = [&](const at::Tensor& weight) {
    NamedTensors tensors = named_tensors(*saved_);
    tensors[0].second = weight;
    save_safetensors(folder_ / "model.safetensors", tensors);
    return error_of([&] { load_weights(*net_, folder_); }, Fault::misuse);
  };
  const std::string transpose = "set a NameRule with .transpose";
  const std::string head = "as of a new head, set a NameRule with .ignore";
  std::string text = refusal_of(at::ones({7, 4}));
  EXPECT_TRUE(
      contains(text, R"("0.weight" is Float [7, 4] in the file, Float [3, 4] in the module)"))
      << text;
  EXPECT_TRUE(contains(text, head) && !contains(text, transpose)) << text;
  text = refusal_of(at::ones({4, 3}));
  EXPECT_TRUE(contains(text, transpose) && !contains(text, head)) << text;
  text = refusal_of(at::ones({3, 4}, at::kDouble));
  EXPECT_TRUE(!contains(text, transpose) && !contains(text, head)) << text;
}

// --- Saving --------------------------------------------------------------------------------------

TEST_F(Folder, HasTheNamesAndTransposedMatricesOfOtherPrograms) {
  save_weights(*saved_, folder_,
               {.max_shard_bytes = 50,
                .names = {{.pattern = R"(0\.weight)", .replacement = "kernel", .transpose = true},
                          {.pattern = ".+num_batches_tracked", .ignore = true}}});
  load_weights(*net_, folder_,
               {.names = {{.pattern = "kernel", .replacement = "0.weight", .transpose = true}},
                .may_be_missing = {".+num_batches_tracked"}});
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             save_weights(*saved_, folder_,
                                          {.names = {{.pattern = ".+", .replacement = "one"}}});
                           },
                           Fault::misuse),
                       "maps both"));
}

TEST_F(Folder, IsWrittenJointlyByAllRanks) {
  run_in_process(2, [&](ProcessGroup& group) {
    save_weights(*state_of(*saved_), folder_, group, {.max_shard_bytes = 50});
  });
  EXPECT_EQ(names().size(), 5U);  // Four files and the index.
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
}

TEST_F(Folder, IsUnchangedIfTheOptionsDoNotFitTheModel) {
  save_weights(*saved_, folder_, SaveWeightsOptions{});
  const std::set<std::string> before = names();
  const SaveWeightsOptions one_name{.names = {{.pattern = ".+", .replacement = "one"}}};
  const SaveWeightsOptions transposed{.names = {{.pattern = ".+", .transpose = true}}};
  const SaveWeightsOptions complex{.type = at::kComplexDouble};
  for (const auto& [options, fault] : {std::pair(one_name, Fault::misuse),
                                       {transposed, Fault::misuse},
                                       {complex, Fault::unsupported}}) {
    error_of([&] { save_weights(*small_net(), folder_, options); }, fault);
    EXPECT_EQ(names(), before);
    run_in_process(2, [&](ProcessGroup& group) {
      // Saved once, to list its tensors.
      CountedState state(*saved_);
      error_of([&] { save_weights(state, folder_, group, options); }, fault);
      EXPECT_EQ(state.saved(), 1);
    });
    EXPECT_EQ(names(), before);
  }
  load_weights(*net_, folder_);
  EXPECT_EQ(sha256(*net_), sha256(*saved_));
}

TEST_F(Folder, HasNoTemporaryFilesAfterAnError) {
  torch::nn::Module module;
  module.register_buffer("a", at::zeros({10}));
  module.register_buffer("b", at::zeros({1 << 20}));
  for (int ranks = 0; ranks < 3; ++ranks) {
    const test::FileSizeLimit full(1 << 16);  // As on a full disk.
    const SaveWeightsOptions options{.max_shard_bytes = 100};
    if (ranks == 0)
      error_of([&] { save_weights(module, folder_, options); }, Fault::system);
    else
      run_in_process(ranks, [&](ProcessGroup& group) {
        error_of([&] { save_weights(*state_of(module), folder_, group, options); }, Fault::system);
      });
    EXPECT_EQ(names(), std::set<std::string>{}) << ranks;
  }
}

TEST_F(Folder, ThatAFailedCallCreatedIsRemoved) {
  torch::nn::Module module;
  module.register_buffer("a", at::zeros({1 << 20}));
  const fs::path made = folder_ / "new" / "model";
  for (int ranks = 0; ranks < 3; ++ranks) {
    const test::FileSizeLimit full(1 << 16);  // As on a full disk.
    const auto save = [&](const fs::path& folder) {
      if (ranks == 0)
        error_of([&] { save_weights(module, folder, SaveWeightsOptions{}); }, Fault::system);
      else
        run_in_process(ranks, [&](ProcessGroup& group) {
          error_of([&] { save_weights(*state_of(module), folder, group); }, Fault::system);
        });
    };
    save(made);
    EXPECT_EQ(names(), std::set<std::string>{}) << ranks;
    fs::create_directory(made.parent_path());  // Existed before the call, empty or not.
    save(made);
    EXPECT_EQ(names(), std::set<std::string>{"new"}) << ranks;
    fs::remove(made.parent_path());
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::weight_files_test
