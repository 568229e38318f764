// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/tensor/script_module.h"
#include "tests/fault_of.h"
#include "tests/rigs/small_script.h"

namespace lockstep::nn::convert_sync_batchnorm_test {
namespace {

using test::fault_of;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNormOptions;
using torch::nn::Sequential;

void in_a_group(const std::function<void(const ProcessGroup&)>& body) {
  run_in_process(2, [&](const ProcessGroup& group) { body(group); });
}

// A Sequential in another one must be of a class whose forward() is not a template.
struct Inner : torch::nn::SequentialImpl {
  torch::Tensor forward(const torch::Tensor& input) { return SequentialImpl::forward(input); }
};

template <class... Modules>
std::shared_ptr<Inner> inner(const Modules&... modules) {
  auto sequential = std::make_shared<Inner>();
  (sequential->push_back(modules), ...);
  return sequential;
}

struct Block : torch::nn::Module {
  Block() {
    register_module("declared", declared);
    register_module("layers", layers);
  }

  SyncBatchNorm declared{4};
  Sequential layers{torch::nn::Linear(4, 4), BatchNorm1d(4), inner(BatchNorm1d(4))};
};

TEST(ConvertSyncBatchnorm, ReplacesElementsOfSequentialsAtAnyDepth) {
  in_a_group([](const ProcessGroup& group) {
    Block block;
    convert_sync_batchnorm(block, group);
    EXPECT_TRUE(block.declared->group());
    auto* const nested = block.layers[2]->as<Sequential>();
    ASSERT_TRUE(block.layers[1]->as<SyncBatchNorm>());
    ASSERT_TRUE(nested->at<SyncBatchNormImpl>(0).group());
    EXPECT_EQ(block.named_modules("", false)["layers.1"], block.layers[1]);
    EXPECT_EQ(block.named_modules("", false)["layers.2.0"], nested->ptr(0));
    const torch::Tensor out = block.layers->forward(torch::ones({2, 4}) * (group.rank() + 1));
    EXPECT_GT(out.abs().sum().item<float>(), 1);  // A constant would become zero on a single rank.
  });
}

TEST(ConvertSyncBatchnorm, KeepsTensorsModeAndOptions) {
  in_a_group([](const ProcessGroup& group) {
    BatchNorm2d plain(BatchNormOptions(3).eps(0.25).momentum(std::nullopt));
    plain->to(torch::kDouble);
    plain->eval();
    plain->weight.set_requires_grad(false);
    plain->options.eps(0.5);
    Sequential net(plain);
    convert_sync_batchnorm(*net, group);
    auto& sync = net->at<SyncBatchNormImpl>(0);
    EXPECT_TRUE(sync.weight.is_same(plain->weight));
    EXPECT_TRUE(sync.bias.is_same(plain->bias));
    EXPECT_TRUE(sync.named_parameters()["weight"].is_same(plain->weight));
    EXPECT_FALSE(sync.weight.requires_grad());
    EXPECT_TRUE(sync.bias.requires_grad());
    for (const char* const name : {"running_mean", "running_var", "num_batches_tracked"})
      EXPECT_EQ(sync.named_buffers()[name].data_ptr(), plain->named_buffers()[name].data_ptr());
    EXPECT_EQ(sync.running_mean.scalar_type(), torch::kDouble);
    EXPECT_TRUE(sync.named_buffers()["running_mean"].is_same(sync.running_mean));
    EXPECT_FALSE(sync.is_training());
    EXPECT_EQ(sync.options.eps(), 0.5);
    EXPECT_FALSE(sync.options.momentum());
  });
}

TEST(ConvertSyncBatchnorm, OneWithoutParametersOrBuffersIsReplacedToo) {
  in_a_group([](const ProcessGroup& group) {
    Sequential net(BatchNorm1d(BatchNormOptions(3).affine(false).track_running_stats(false)));
    convert_sync_batchnorm(*net, group);
    EXPECT_TRUE(net->parameters().empty());
    EXPECT_TRUE(net->buffers().empty());
    EXPECT_TRUE(net->forward(torch::ones({2, 3}) * group.rank()).defined());
  });
}

TEST(ConvertSyncBatchnorm, OneThatIsHeldTwiceRemainsOne) {
  in_a_group([](const ProcessGroup& group) {
    BatchNorm1d plain(3);
    const auto first = inner(plain, torch::nn::Identity(), plain);
    Sequential net(first, inner(plain), first);
    convert_sync_batchnorm(*net, group);
    EXPECT_TRUE((*first)[0]->as<SyncBatchNorm>());
    EXPECT_EQ((*first)[0], (*first)[2]);
    EXPECT_EQ((*first)[0], net[1]->as<Sequential>()->ptr(0));
  });
}

TEST(ConvertSyncBatchnorm, OneMadeWithAGroupKeepsItAndOthersGetThatOfTheLastConversion) {
  in_a_group([](const ProcessGroup& group) {
    const ProcessGroup other = group.split(group.rank());
    Sequential net(SyncBatchNorm(3, other), SyncBatchNorm(3));
    convert_sync_batchnorm(*net, other);
    convert_sync_batchnorm(*net, group);
    EXPECT_EQ(net->at<SyncBatchNormImpl>(0).group()->size(), 1);
    EXPECT_EQ(net->at<SyncBatchNormImpl>(1).group()->size(), 2);
  });
}

TEST(ConvertSyncBatchnorm, AModuleThatIsASyncBatchNormGetsTheGroup) {
  in_a_group([](const ProcessGroup& group) {
    SyncBatchNorm norm(3);
    convert_sync_batchnorm(*norm, group);
    EXPECT_TRUE(norm->group());
  });
}

struct Typed : torch::nn::Module {
  Typed() {
    register_module("block", block);
    register_module("norm", norm);
    register_module("list", list);
    register_module("dict", dict);
    register_module("shared", shared);
  }

  std::shared_ptr<Block> block = std::make_shared<Block>();
  BatchNorm2d norm{4};
  torch::nn::ModuleList list{Sequential(BatchNorm1d(4)), BatchNorm1d(4)};
  torch::nn::ModuleDict dict{
      std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{
          {"a", BatchNorm1d(4).ptr()}}};
  Sequential shared{norm};  // An element here, and a typed member.
};

TEST(ConvertSyncBatchnorm, MembersAndListsThatAreCalledByTypeAreAllNamedAndNothingIsChanged) {
  in_a_group([](const ProcessGroup& group) {
    Typed net;
    std::string text;
    EXPECT_EQ(fault_of([&] { convert_sync_batchnorm(net, group); }, &text), Fault::unsupported);
    EXPECT_NE(text.find(": norm, list.1, dict.a. Declare them as lockstep::SyncBatchNorm"),
              text.npos)
        << text;
    EXPECT_FALSE(net.block->declared->group());
    EXPECT_TRUE(net.block->layers[1]->as<BatchNorm1d>());
    EXPECT_EQ(net.named_modules("", false)["block.layers.1"], net.block->layers[1]);
    EXPECT_TRUE(net.shared[0]->as<BatchNorm2d>());
  });
}

struct Special : torch::nn::BatchNorm1dImpl {
  using BatchNorm1dImpl::BatchNorm1dImpl;
  torch::Tensor forward(const torch::Tensor& input) { return -BatchNorm1dImpl::forward(input); }
};

TEST(ConvertSyncBatchnorm, ABatchNormItselfAndClassesDerivedFromOneAreRefused) {
  in_a_group([](const ProcessGroup& group) {
    BatchNorm1d norm(3);
    EXPECT_EQ(fault_of([&] { convert_sync_batchnorm(*norm, group); }), Fault::unsupported);
    Sequential net(std::make_shared<Special>(3));
    EXPECT_EQ(fault_of([&] { convert_sync_batchnorm(*net, group); }), Fault::unsupported);
  });
}

TEST(ConvertSyncBatchnorm, NamesThoseOfScripts) {
  in_a_group([](const ProcessGroup& group) {
    torch::nn::Module net;
    net.register_module("plain", std::make_shared<ScriptModule>(test::small_script()));
    convert_sync_batchnorm(net, group);
    net.register_module("script",
                        std::make_shared<ScriptModule>(test::small_script("BatchNorm1d")));
    std::string text;
    EXPECT_EQ(fault_of([&] { convert_sync_batchnorm(net, group); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("these are not: script.layer."), text.npos) << text;
  });
}

}  // namespace
}  // namespace lockstep::nn::convert_sync_batchnorm_test
