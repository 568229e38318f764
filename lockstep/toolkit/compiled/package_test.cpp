// Packages without compiled code, which tests/python/compiled_test.py runs.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/compiled/package.h"

#include <ATen/ops/ones.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/compiled/signature.h"
#include "tests/fault_of.h"

namespace lockstep::compiled::package_test {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;
using test::fault_of;
using Sizes = std::vector<std::int64_t>;

Json tensor(const Json& sizes, const Json& order) {
  return {{"dtype", "float32"}, {"sizes", sizes}, {"order", order}};
}

Json named(const Json& names, Json form) {
  form["names"] = names;
  return form;
}

Json parameter(const Json& names, const std::string& role, Json form) {
  form["role"] = role;
  return named(names, std::move(form));
}

Json description() {
  Json input = tensor({4, 3}, {0, 1});
  input["batch_dim"] = 0;
  return {
      {"format", "lockstep-compiled-1"},
      {"torch", TORCH_VERSION},
      {"instruction_sets", {"avx2", "fma"}},
      {"threads", 1},
      {"parameters",
       {parameter({"conv.weight"}, "trained", tensor({8, 3, 2, 5}, {0, 2, 3, 1})),
        parameter({"tied.a", "tied.b"}, "frozen", tensor({2}, {0})),
        parameter({"spare"}, "unused", tensor(Json::array(), Json::array()))}},
      {"buffers", {named({"norm.mean"}, tensor({8}, {0}))}},
      {"inputs", {input}},
      {"graphs",
       {{"train",
         {{"updated", {0}}, {"outputs", 2}, {"batch", {2, nullptr}}, {"files", Json::object()}}},
        {"eval",
         {{"updated", Json::array()},
          {"outputs", 2},
          {"batch", {2, 64}},
          {"files", Json::object()}}}}}};
}

TEST(CompiledSignature, HasWhatTheExporterWrote) {
  const Signature found = read_signature("a.pt2", description().dump());
  ASSERT_EQ(found.parameters.size(), 3U);
  EXPECT_EQ(found.parameters[0].form.strides, (Sizes{30, 1, 15, 3}));
  EXPECT_TRUE(found.parameters[0].form.make().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(found.parameters[1].names, (std::vector<std::string>{"tied.a", "tied.b"}));
  EXPECT_EQ(found.parameters[1].role, Role::frozen);
  EXPECT_EQ(found.parameters[2].role, Role::unused);
  EXPECT_EQ(found.parameters[2].form.make().dim(), 0);
  EXPECT_EQ(found.inputs.at(0).batch_dim, 0U);
  EXPECT_EQ(found.inputs[0].form.strides_for({9, 3}), (Sizes{3, 1}));
  EXPECT_EQ(found.train.results, 4U);
  EXPECT_EQ(found.eval.results, 2U);
  EXPECT_EQ(found.train.least_batch, 2);
  EXPECT_GT(found.train.most_batch, 1'000'000'000);
  EXPECT_EQ(found.eval.most_batch, 64);
}

TEST(CompiledSignature, RefusesOtherForms) {
  using Change = std::function<void(Json&)>;
  const std::map<std::string, Change> changes = {
      {"key 'graphs' not found", [](Json& json) { json.erase("graphs"); }},
      {"unknown element type", [](Json& json) { json["inputs"][0]["dtype"] = "float33"; }},
      {"sizes and order differ", [](Json& json) { json["inputs"][0]["order"] = {0}; }},
      {"no order of the dimensions",
       [](Json& json) {
         json["inputs"][0]["order"] = {1, 1};
       }},
      {"a size is negative",
       [](Json& json) {
         json["inputs"][0]["sizes"] = {-1, 3};
       }},
      {"the batch is no dimension", [](Json& json) { json["inputs"][0]["batch_dim"] = 2; }},
      {"a tensor has no name", [](Json& json) { json["buffers"][0]["names"] = Json::array(); }},
      {"a part of a name is empty", [](Json& json) { json["buffers"][0]["names"] = {"a..b"}; }},
      {"two tensors have one name", [](Json& json) { json["buffers"][0]["names"] = {"tied.b"}; }},
      {"unknown role", [](Json& json) { json["parameters"][0]["role"] = "other"; }},
      {"a graph has no loss", [](Json& json) { json["graphs"]["train"]["outputs"] = 0; }},
      {"the graphs' outputs differ", [](Json& json) { json["graphs"]["eval"]["outputs"] = 1; }},
      {"there is no such buffer", [](Json& json) { json["graphs"]["train"]["updated"] = {1}; }},
  };
  for (const auto& [reason, change] : changes) {
    Json json = description();
    change(json);
    std::string text;
    EXPECT_EQ(fault_of([&] { read_signature("a.pt2", json.dump()); }, &text), Fault::corrupt);
    EXPECT_TRUE(text.starts_with("corrupt: a.pt2: ") && text.find(reason) != text.npos)
        << reason << ": " << text;
  }
  EXPECT_EQ(fault_of([] { read_signature("a.pt2", "{"); }), Fault::corrupt);
  Json later = description();
  later["format"] = "lockstep-compiled-2";
  EXPECT_EQ(fault_of([&] { read_signature("a.pt2", later.dump()); }), Fault::unsupported);
}

TEST(CompiledSignature, RunsOnCpusThatHaveAllInstructionSets) {
  Signature signature = read_signature("a.pt2", description().dump());
  EXPECT_NO_THROW(require_runnable("a.pt2", signature, {"avx", "avx2", "fma"}));
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  require_runnable("a.pt2", signature, {"avx", "fma"});
                },
                &text),
            Fault::unsupported);
  EXPECT_NE(text.find("a CPU with avx2, which"), text.npos) << text;
  signature.torch = "1.13.0";
  EXPECT_EQ(fault_of(
                [&] {
                  require_runnable("a.pt2", signature, {"avx2", "fma"});
                },
                &text),
            Fault::unsupported);
  EXPECT_NE(text.find("PyTorch 1.13.0"), text.npos) << text;
}

// --- Packages ------------------------------------------------------------------------------------

class CompiledPackage : public testing::Test {
 protected:
  ~CompiledPackage() override { fs::remove(file_); }

  const std::string& file() const { return file_; }

  std::string error_of_file(const std::string& content) {
    write_file(file_, content);
    std::string text;
    EXPECT_EQ(fault_of([&] { load_package(file_); }, &text), Fault::corrupt);
    return text;
  }

  std::string error_of(const std::map<std::string, std::string>& records,
                       Fault fault = Fault::corrupt) {
    {
      caffe2::serialize::PyTorchStreamWriter writer(file_);
      for (const auto& [name, content] : records)
        writer.writeRecord(name, content.data(), content.size());
      writer.writeEndOfFile();
    }
    std::string text;
    EXPECT_EQ(fault_of([&] { load_package(file_); }, &text), fault);
    return text;
  }

 private:
  const std::string file_ = testing::TempDir() + "compiled_package_test.pt2";
};

std::string with_file(const std::string& record, const std::string& digest) {
  Json json = description();
  json["instruction_sets"] = Json::array();
  json["graphs"]["train"]["files"] = {{record, digest}};
  return json.dump();
}

TEST_F(CompiledPackage, IsDistinguishedFromOtherFiles) {
  std::string text;
  const std::string folder = testing::TempDir();
  EXPECT_EQ(fault_of([&] { load_package(folder); }, &text), Fault::system);
  EXPECT_NE(text.find(folder + ": Is a directory"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { load_package(folder + "absent.pt2"); }, &text), Fault::system);
  EXPECT_NE(text.find("absent.pt2: No such file"), text.npos) << text;
  const std::string archive(100, 'x');
  for (const auto& [content, reason] : std::map<std::string, std::string>{
           {"", "the file is empty"},
           {"{\"a\": 1}", "it is no archive, and so no package of lockstep_export"},
           {"PK\x03\x04" + archive, "the archive is damaged, or a part of it is missing"}}) {
    const std::string said = error_of_file(content);
    EXPECT_NE(said.find(file() + ": " + reason), said.npos) << said;
  }
}

TEST_F(CompiledPackage, NeedsAFolderForItsCode) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/no/such/folder", 1);
  Json json = description();
  json["instruction_sets"] = Json::array();
  const std::string said = error_of({{"extra/lockstep.json", json.dump()}}, Fault::system);
  kept.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
  EXPECT_NE(said.find("/no/such/folder, the folder of TMPDIR: No such file"), said.npos) << said;
}

TEST_F(CompiledPackage, IsRefusedIfItIsDamaged) {
  EXPECT_NE(error_of({{"data", "x"}}).find("no package of lockstep_export"), std::string::npos);
  const std::string library = "data/train/code.so", note = "data/train/note.json";
  const std::string digest = sha256(at::ones({1}, at::kByte));
  const std::string content = "\x01";
  EXPECT_NE(error_of({{"extra/lockstep.json", with_file(library, digest)}, {library, "\x02"}})
                .find("data/train/code.so is damaged"),
            std::string::npos);
  EXPECT_NE(error_of({{"extra/lockstep.json", with_file(library, digest)}}).find("code.so"),
            std::string::npos);
  EXPECT_NE(error_of({{"extra/lockstep.json", with_file(note, digest)}, {note, content}})
                .find("a graph has no shared library"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::compiled::package_test
