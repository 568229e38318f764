// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/name_table.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/ranks.h"

namespace lockstep::name_table_test {
namespace {

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
               {{.pattern = "dense.kernel", .replacement = "weight", .transpose = true},
                {.pattern = "dense.offset", .replacement = "bias"},
                {.pattern = "dense.steps", .ignore = true}});
  EXPECT_TRUE(net_->weight.equal(kernel.t()));
  EXPECT_TRUE(net_->bias.equal(at::ones({2})));
}

TEST_F(LoadedByTable, TwoNamesThatBecomeOneAreBothNamed) {
  save_safetensors(file_, {{"a.bias", at::ones({2})}, {"b.bias", at::ones({2})}});
  const std::string message = load_error({{.pattern = "..bias", .replacement = "bias"}});
  EXPECT_NE(message.find(R"("a.bias" and "b.bias" are both "bias")"), message.npos) << message;
}

TEST_F(LoadedByTable, WhatDoesNotFitIsNamedAsInTheModuleAndAsInTheFile) {
  save_safetensors(file_, {{"w", at::ones({2, 3})}, {"b", at::ones({2})}, {"odd", at::ones({1})}});
  const std::string message =
      load_error({{.pattern = "w", .replacement = "weight", .transpose = true},
                  {.pattern = "b", .replacement = "bias", .transpose = true}});
  for (const char* part :
       {R"("weight" ("w" in the file) is Float [3, 2] in the file (transposed))",
        R"("bias" ("b" in the file) is no matrix)", R"("odd" is not in the module)"})
    EXPECT_NE(message.find(part), message.npos) << message;
}

}  // namespace
}  // namespace lockstep::name_table_test
