// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <iterator>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/on_meta.h"
#include "lockstep/tensor/sharded_module.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::checkpoint::safetensors_test {
namespace {

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

template <class Body>
std::string error_of(Body body, Fault fault) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), fault) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

torch::nn::Sequential small_net(std::int64_t width = 4) {
  return torch::nn::Sequential(torch::nn::Linear(3, width), torch::nn::BatchNorm1d(width));
}

torch::nn::Linear twice_named() {
  torch::nn::Linear twice(torch::nn::LinearOptions(3, 3).bias(false));
  twice->register_parameter("again", twice->weight);
  return twice;
}

class SafetensorsFile : public testing::Test {
 protected:
  void write(const std::string& bytes) { std::ofstream(file_, std::ios::binary) << bytes; }

  std::string load_error(Fault fault = Fault::corrupt) {
    const std::string message = error_of([&] { load_safetensors(file_); }, fault);
    EXPECT_TRUE(contains(message, file_.string())) << message;
    return message;
  }

  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(scratch_.path()),
                      std::filesystem::directory_iterator()));
  }

  const test::ScratchDirectory scratch_;
  const std::filesystem::path file_ = scratch_.path() / "model.safetensors";
};

TEST_F(SafetensorsFile, KeepsTensorsOfEveryTypeBitForBit) {
  NamedTensors saved;
  for (const at::ScalarType type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong, at::kInt,
        at::kShort, at::kChar, at::kByte, at::kBool, at::kUInt16, at::kUInt32, at::kUInt64,
        at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz, at::kFloat8_e4m3fnuz,
        at::kFloat8_e8m0fnu})
    saved.emplace_back(c10::toString(type), at::arange(6).to(type).view({2, 3}));
  saved.emplace_back("scalar", at::arange(3, 4)[0]);
  saved.emplace_back("empty", at::empty({0, 5}));
  saved.emplace_back("transposed", at::arange(6).view({2, 3}).t());
  saved.emplace_back("slice", at::arange(20, at::kFloat).slice(0, 1, 20, 3));
  // Conjugated and negated lazily: their memory holds other values.
  const at::Tensor complex = at::complex(at::arange(3, at::kFloat), at::ones({3}));
  saved.emplace_back("conjugate", complex.conj());
  saved.emplace_back("negative", at::imag(complex.conj()));
  save_safetensors(file_, saved, {{"step", "7"}, {"note", "\xc3\xa9"}});

  const Safetensors loaded = load_safetensors(file_);
  EXPECT_EQ(loaded.metadata,
            (std::map<std::string, std::string>{{"step", "7"}, {"note", "\xc3\xa9"}}));
  ASSERT_EQ(loaded.tensors.size(), saved.size());
  const std::map<std::string, at::Tensor> by_name(loaded.tensors.begin(), loaded.tensors.end());
  for (const auto& [name, tensor] : saved)
    EXPECT_EQ(sha256({by_name.at(name)}), sha256({tensor})) << name;
}

// "a" is uint8 [2]; "odd" has a type that LibTorch lacks.
std::string file_with_f4() {
  std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("odd":{"dtype":"F4","shape":[2],"data_offsets":[2,3]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + "\1\2\3";
}

TEST_F(SafetensorsFile, WithATypeThatLibTorchLacksIsReadWithoutThatTensor) {
  write(file_with_f4());
  const Safetensors some = load_safetensors(file_, {"a"});
  EXPECT_EQ(some.tensors.at(0).second[1].item<int>(), 2);
  const std::string message = error_of([&] { load_safetensors(file_); }, Fault::unsupported);
  EXPECT_TRUE(contains(message, R"(tensor "odd" is "F4" [2])")) << message;
  EXPECT_TRUE(contains(message, file_.string())) << message;
  error_of([&] { load_safetensors(file_, {"b"}); }, Fault::misuse);

  torch::nn::Module module;
  module.register_buffer("a", at::zeros({2}, at::kByte));
  load_weights(module, file_, {.names = {{.pattern = "odd", .ignore = true}}});
  EXPECT_EQ(module.buffers()[0][0].item<int>(), 1);
  module.register_buffer("odd", at::zeros({2}, at::kByte));
  const std::string of_module = error_of([&] { load_weights(module, file_); }, Fault::unsupported);
  EXPECT_TRUE(contains(of_module, R"(tensor "odd" is "F4" [2])")) << of_module;
}

TEST_F(SafetensorsFile, MayHoldNothing) {
  save_safetensors(file_, {});
  EXPECT_EQ(std::filesystem::file_size(file_), 16U);
  EXPECT_TRUE(load_safetensors(file_).tensors.empty());
}

TEST_F(SafetensorsFile, ReplacesTheOldFileAndLeavesNoOther) {
  write("old");
  save_safetensors(file_, {{"a", at::ones({3})}});
  EXPECT_EQ(load_safetensors(file_).tensors.size(), 1U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(SafetensorsFile, IsRefusedAtEveryTruncation) {
  save_safetensors(file_, {{"a", at::arange(5)}, {"b", at::ones({3}, at::kByte)}});
  const std::string whole = bytes_of(file_);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    load_error();
  }
  write(whole + '\0');
  EXPECT_TRUE(contains(load_error(), "expected 43 bytes of data, found 44"));
}

TEST_F(SafetensorsFile, IsRefusedWhenItsHeaderHasALengthThatCannotBe) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    write(little_endian(length) + "{}");
    EXPECT_TRUE(contains(load_error(), "found one of " + std::to_string(length) +
                                           ": the file is damaged, or is not a safetensors file"));
  }
  write(little_endian(100'000'001) + "{}");
  std::filesystem::resize_file(file_, 100'000'009);
  EXPECT_TRUE(contains(load_error(), "limit of 100000000"));
}

TEST_F(SafetensorsFile, IsRefusedWithTruthValuesThatAreNone) {
  save_safetensors(file_, {{"mask", at::ones({3}, at::kBool)}});
  std::string bytes = bytes_of(file_);
  bytes.back() = 2;
  write(bytes);
  EXPECT_TRUE(contains(load_error(), R"(tensor "mask")"));
}

TEST_F(SafetensorsFile, ThatIsNotThereIsNamed) {
  EXPECT_TRUE(contains(load_error(Fault::system), "No such file or directory"));
}

TEST_F(SafetensorsFile, IsNotWrittenWithTensorsItCannotHold) {
  const auto save = [&](const at::Tensor& tensor) { save_safetensors(file_, {{"a", tensor}}); };
  error_of([&] { save(at::Tensor()); }, Fault::misuse);
  EXPECT_TRUE(
      contains(error_of([&] { save(at::ones({2}, at::kComplexDouble)); }, Fault::unsupported),
               "view_as_real"));
  error_of([&] { save(at::ones({2}).to_sparse()); }, Fault::unsupported);
  error_of(
      [&] {
        save_safetensors(file_, {{"a", at::ones({1})}, {"a", at::ones({1})}});
      },
      Fault::misuse);
  EXPECT_EQ(files(), 0U);
}

TEST_F(SafetensorsFile, IsLeftAsItWasWhenTheDiskIsFull) {
  save_safetensors(file_, {{"a", at::ones({3})}});
  const std::string before = bytes_of(file_);

  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 16, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of(
      [&] {
        save_safetensors(file_, {{"a", at::ones({1 << 16})}});
      },
      Fault::system);
  ::setrlimit(RLIMIT_FSIZE, &old);

  EXPECT_TRUE(contains(message, file_.string() + ": File too large")) << message;
  EXPECT_TRUE(contains(message, "at most 65536 bytes: ulimit -f")) << message;
  EXPECT_EQ(bytes_of(file_), before);
  EXPECT_EQ(files(), 1U);
}

TEST_F(SafetensorsFile, NamesADirectoryThatIsNotThere) {
  const auto elsewhere = scratch_.path() / "absent" / "model.safetensors";
  const std::string message = error_of(
      [&] {
        save_safetensors(elsewhere, {{"a", at::ones({3})}});
      },
      Fault::system);
  EXPECT_TRUE(contains(message, elsewhere.string() + ": No such file")) << message;
}

TEST_F(SafetensorsFile, GoesIntoTheWorkingDirectoryWithoutAFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(scratch_.path());
  save_safetensors("model.safetensors", {{"a", at::ones({3})}});
  std::filesystem::current_path(before);
  EXPECT_EQ(load_safetensors(file_).tensors.size(), 1U);
}

TEST_F(SafetensorsFile, MovesWeightsFromOneModuleToAnother) {
  auto from = small_net();
  auto into = small_net();
  from->named_buffers()["1.num_batches_tracked"].fill_(12);
  ASSERT_NE(sha256(*from), sha256(*into));
  save_weights(*from, file_);
  load_weights(*into, file_);
  EXPECT_EQ(sha256(*from), sha256(*into));
  EXPECT_TRUE(into->named_parameters()["0.weight"].requires_grad());
  EXPECT_TRUE(into->named_parameters()["0.weight"].is_leaf());
  EXPECT_EQ(load_safetensors(file_).metadata.at("format"), "pt");
}

TEST_F(SafetensorsFile, DoesNotModifyAModuleItDoesNotFit) {
  auto net = small_net();
  const std::string before = sha256(*net);
  NamedTensors weights;
  for (const auto& [name, tensor] : named_tensors(*small_net())) weights.emplace_back(name, tensor);
  const auto load = [&](const NamedTensors& tensors) {
    save_safetensors(file_, tensors);
    const std::string message = error_of([&] { load_weights(*net, file_); }, Fault::misuse);
    EXPECT_EQ(sha256(*net), before);
    return message;
  };

  auto missing = weights;
  missing.erase(missing.begin());
  EXPECT_TRUE(contains(load(missing), R"("0.weight" is not in the file)"));
  auto surplus = weights;
  surplus.emplace_back("2.weight", at::ones({1}));
  EXPECT_TRUE(contains(load(surplus), R"("2.weight" is not in the module)"));
  auto of_another_type = weights;
  of_another_type.back().second = at::ones({});
  EXPECT_TRUE(contains(load(of_another_type), R"("1.num_batches_tracked" is Float [])"));
  EXPECT_TRUE(contains(load(named_tensors(*small_net(5))), "and 1 more"));
}

struct Half : torch::nn::Module, ShardedModule {
  explicit Half(const ProcessGroup& group) {
    register_parameter("half", at::ones({2}));
    register_buffer("count", at::full({1}, 5));
    layouts_.emplace("half", ParameterLayout{{4}, {.list = {{{2 * group.rank()}, {2}}}}, group});
  }
  const Layouts& layouts() const override { return layouts_; }

 private:
  Layouts layouts_;
};

TEST_F(SafetensorsFile, IsNeitherOfNorForAModuleWithoutValues) {
  auto net = on_meta([] { return torch::nn::Linear(3, 2); });
  for (const bool saves : {true, false}) {
    std::string text;
    const auto act = [&] {
      if (saves)
        save_weights(*net, file_);
      else
        load_weights(*net, file_);
    };
    EXPECT_EQ(test::fault_of(act, &text), Fault::misuse);
    EXPECT_NE(text.find("weight is on the meta device"), text.npos) << text;
  }
}

TEST_F(SafetensorsFile, IsNotWrittenWithARanksPartsOfParameters) {
  run_in_process(2, [&](ProcessGroup& group) {
    const Half half(group);
    std::string text;
    EXPECT_EQ(test::fault_of([&] { save_weights(half, file_); }, &text), Fault::misuse);
    EXPECT_NE(text.find("save_weights(module, folder, group)"), text.npos) << text;
    const NamedTensors whole = whole_tensors(half);
    if (group.rank() == 0) save_safetensors(file_, whole);
    group.barrier();
    Half other(group);  // Its load reads this rank's part.
    const at::NoGradGuard no_grad;
    other.parameters()[0].zero_();
    load_weights(other, file_);
    EXPECT_TRUE(other.parameters()[0].equal(at::ones({2})));
  });
  const Safetensors read = load_safetensors(file_);
  ASSERT_EQ(read.tensors.size(), 2U);
  for (const auto& [name, tensor] : read.tensors)
    EXPECT_TRUE(tensor.equal(name == "half" ? at::ones({4}) : at::full({1}, 5))) << name;

  run_in_process(1, [&](ProcessGroup& group) {
    const Half whole(group);  // A group of one rank: there are no parts.
    EXPECT_NO_THROW(save_weights(whole, file_));
  });
}

// The form of safetensors.torch.save_model().
TEST_F(SafetensorsFile, MayHaveOneOfTheNamesOfATensorThatHasTwo) {
  auto twice = twice_named();
  save_safetensors(file_, {{"weight", at::ones({3, 3})}});
  load_weights(*twice, file_);
  EXPECT_TRUE(at::equal(twice->weight, at::ones({3, 3})));
}

TEST_F(SafetensorsFile, WithTwoUnequalTensorsThatAreOneInTheModuleIsRefused) {
  auto twice = twice_named();
  const std::string before = sha256(*twice);
  save_safetensors(file_, {{"weight", at::ones({3, 3})}, {"again", at::zeros({3, 3})}});
  const std::string message = error_of([&] { load_weights(*twice, file_); }, Fault::mismatch);
  EXPECT_TRUE(contains(message, R"("again" and "weight" are one tensor)")) << message;
  EXPECT_TRUE(contains(message, file_.string())) << message;
  EXPECT_EQ(sha256(*twice), before);
}

// The form of save_weights(), and of torch's save_file() of a state_dict() with clones.
TEST_F(SafetensorsFile, WithTwoEqualTensorsThatAreOneInTheModuleIsLoaded) {
  auto twice = twice_named();
  const at::Tensor nan = at::full({3, 3}, std::numeric_limits<float>::quiet_NaN());
  save_safetensors(file_, {{"weight", nan}, {"again", nan.clone()}});
  load_weights(*twice, file_);
  EXPECT_TRUE(twice->weight.isnan().all().item<bool>());
}

TEST_F(SafetensorsFile, WithAPrefixOnAllNamesReportsHowToLoadIt) {
  auto net = small_net();
  NamedTensors wrapped;
  for (const auto& [name, tensor] : named_tensors(*small_net()))
    wrapped.emplace_back("module." + name, tensor);
  save_safetensors(file_, wrapped);
  const std::string message = error_of([&] { load_weights(*net, file_); }, Fault::misuse);
  EXPECT_TRUE(contains(message, R"(lockstep::without_prefix("module."))")) << message;
  load_weights(*net, file_, without_prefix("module."));
  EXPECT_TRUE(at::equal(net->named_parameters()["0.weight"], wrapped.front().second));
}

TEST_F(SafetensorsFile, WithoutAPrefixOnAllNamesReportsNoPrefix) {
  save_safetensors(file_, {{"module.0.weight", at::ones({4, 3})}});
  const std::string message = error_of([&] { load_weights(*small_net(), file_); }, Fault::misuse);
  EXPECT_FALSE(contains(message, "without_prefix")) << message;
}

// A program that runs as root and saves to /dev/null must not replace it.
TEST_F(SafetensorsFile, DoesNotReplaceWhatIsNoFile) {
  const NamedTensors tensors{{"weight", at::ones({3})}};
  const std::filesystem::path fifo = scratch_.path() / "fifo", link = scratch_.path() / "link";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { save_safetensors(fifo, tensors); }, Fault::system),
                       "not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  std::filesystem::create_symlink(file_.filename(), link);
  save_safetensors(link, tensors);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(load_safetensors(file_).tensors.size(), 1u);
}

std::string found(const NameTable& names, const std::string& name) {
  const auto target = names.find(name);
  return target ? target->name + (target->transposed ? " transposed" : "") : "ignored";
}

class LoadedByTable : public testing::Test {
 protected:
  std::string load_error(const NameTable& names) {
    try {
      load_weights(*net_, file_, names);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::misuse);
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  const test::ScratchDirectory scratch_;
  const std::filesystem::path file_ = scratch_.path() / "theirs.safetensors";
  torch::nn::Linear net_{3, 2};
};

TEST(NameTable, LeavesNamesThatNoRuleMatches) {
  EXPECT_EQ(found({}, "fc.weight"), "fc.weight");
  const NameTable names{{.pattern = "fc", .replacement = "head"}};
  EXPECT_EQ(found(names, "fc.weight"), "fc.weight") << "a pattern is for the whole name";
  EXPECT_EQ(found(names, "fc"), "head");
}

TEST(NameTable, UsesTheFirstRuleThatMatches) {
  const NameTable names{
      {.pattern = R"(h\.(\d+)\.bias)", .ignore = true},
      {.pattern = R"(h\.(\d+)\.(\w+))", .replacement = "blocks.$1.$2", .transpose = true},
      {.pattern = ".*", .replacement = "rest.$&"}};
  EXPECT_EQ(found(names, "h.0.bias"), "ignored");
  EXPECT_EQ(found(names, "h.11.weight"), "blocks.11.weight transposed");
  EXPECT_EQ(found(names, "wte.weight"), "rest.wte.weight");
}

TEST(NameTable, DoesNotMindNamesOfAnyLength) {
  const NameTable names{{.pattern = "(a|b)*", .replacement = "short"}};
  EXPECT_EQ(found(names, std::string(1000, 'a')), "short");
  EXPECT_EQ(found(names, std::string(10'000'000, 'a')).size(), 10'000'000U);
}

TEST(NameTable, TakesAwayAPrefixThatStandsForItself) {
  const NameTable names = without_prefix("_orig_mod.");
  EXPECT_EQ(found(names, "_orig_mod.fc.weight"), "fc.weight");
  EXPECT_EQ(found(names, "_orig_mod.module._orig_mod.fc"), "module._orig_mod.fc");
  EXPECT_EQ(found(names, "_orig_modXfc.weight"), "_orig_modXfc.weight");
  EXPECT_EQ(found(names, "fc._orig_mod.weight"), "fc._orig_mod.weight");
  EXPECT_EQ(found(names, "_orig_mod."), "_orig_mod.");
  EXPECT_EQ(found(without_prefix("a[0]($1)\\."), "a[0]($1)\\.b"), "b");
}

TEST(NameTable, RefusesAPatternThatIsNone) {
  try {
    NameTable{{.pattern = "h.(\\d+"}};
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    EXPECT_NE(std::string(error.what()).find(R"("h.(\\d+")"), std::string::npos) << error.what();
  }
}

TEST_F(LoadedByTable, WeightsMayHaveOtherNamesAndLieTheOtherWayRound) {
  const at::Tensor kernel = at::arange(6, at::kFloat).view({3, 2});
  save_safetensors(
      file_,
      {{"dense.kernel", kernel}, {"dense.offset", at::ones({2})}, {"dense.steps", at::arange(1)}});
  load_weights(*net_, file_,
               {.names = {{.pattern = "dense.kernel", .replacement = "weight", .transpose = true},
                          {.pattern = "dense.offset", .replacement = "bias"},
                          {.pattern = "dense.steps", .ignore = true}}});
  EXPECT_TRUE(net_->weight.equal(kernel.t()));
  EXPECT_TRUE(net_->bias.equal(at::ones({2})));
}

TEST_F(LoadedByTable, TwoNamesThatBecomeOneAreBothNamed) {
  save_safetensors(file_, {{"a.bias", at::ones({2})}, {"b.bias", at::ones({2})}});
  const std::string message = load_error({{.pattern = "..bias", .replacement = "bias"}});
  EXPECT_NE(message.find(R"(maps both "a.bias" and "b.bias" to "bias")"), message.npos) << message;
}

TEST_F(LoadedByTable, MismatchesAreNamedAsInTheModuleAndAsInTheFile) {
  save_safetensors(file_, {{"w", at::ones({2, 3})}, {"b", at::ones({2})}, {"odd", at::ones({1})}});
  const std::string message =
      load_error({{.pattern = "w", .replacement = "weight", .transpose = true},
                  {.pattern = "b", .replacement = "bias"}});
  for (const char* part : {R"("weight" ("w" in the file) is Float [3, 2] in the file (transposed))",
                           R"("odd" is not in the module)"})
    EXPECT_NE(message.find(part), message.npos) << message;
  EXPECT_TRUE(contains(load_error({{.pattern = "b", .replacement = "bias", .transpose = true}}),
                       R"("b" cannot be transposed)"));
}

}  // namespace
}  // namespace lockstep::checkpoint::safetensors_test
