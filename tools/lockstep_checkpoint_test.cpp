// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/base/text_file.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class Fixed final : public Stateful {
 public:
  explicit Fixed(StateDict state) : state_(std::move(state)) {}

  StateDict state_dict() override { return state_; }
  StateRequest wanted(const StateDict&) override { return {}; }
  void load_state_dict(StateDict) override {}

 private:
  StateDict state_;
};

StateDict of_tensors(const NamedTensors& tensors, StateValues values = {}) {
  StateDict state{.tensors = {}, .values = std::move(values)};
  for (const auto& [name, tensor] : tensors) state.tensors[name] = whole(tensor);
  return state;
}

NamedTensors weights() {
  return {{"conv.weight", at::arange(24, at::kFloat).view({2, 3, 4})},
          {"conv.steps", at::arange(7, 8)[0]},
          {"fc.bias", at::ones({1000})}};
}

StateDict adam(double lr = 0.125) {
  return of_tensors({{"fc.bias.exp_avg", at::ones({1000})}},
                    {{"lr", lr}, {"name", "adam"}, {"steps", std::int64_t{7}}});
}

class LockstepCheckpoint : public testing::Test {
 protected:
  fs::path save(const std::string& run, std::int64_t step, const StateDict& model,
                const StateDict& optimizer = adam()) {
    Fixed first(model);
    Fixed second(optimizer);
    Checkpointer(folder() / run, ProcessGroup::self())
        .save(step, {{"model", &first}, {"optimizer", &second}});
    return list_checkpoints(folder() / run).front();
  }
  fs::path save(const std::string& run, std::int64_t step) {
    return save(run, step, of_tensors(weights()));
  }

  const fs::path& folder() const { return scratch_.path(); }

  static Finished run(Arguments arguments) {
    arguments.insert(arguments.begin(), LOCKSTEP_CHECKPOINT);
    return run_command(std::move(arguments));
  }

 private:
  const ScratchDirectory scratch_;
};

fs::path file_of(const fs::path& checkpoint, const std::string& part) {
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.path().filename().string().starts_with(part + "-")) return entry.path();
  ADD_FAILURE() << "no file of " << part;
  return {};
}

void flip_last_byte(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const auto byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(-1, std::ios::end);
  stream.put(byte);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

std::ptrdiff_t lines_in(const std::string& text) { return std::ranges::count(text, '\n'); }

void expect_one_line(const Finished& refused, int code, const std::string& part) {
  EXPECT_EQ(refused.code, code) << refused.err;
  EXPECT_EQ(lines_in(refused.err), 1) << refused.err;
  EXPECT_TRUE(contains(refused.err, part)) << refused.err;
}

// --- show ---------------------------------------------------------------------------------------

TEST_F(LockstepCheckpoint, ShowsPartsFilesTensorsAndValues) {
  const fs::path saved = save("a", 100);
  const Finished shown = run({"show", saved});
  EXPECT_EQ(shown.code, 0) << shown.err;
  for (const char* part :
       {"step 100, saved by 1 rank", "model: 3 tensors", "model-00001-of-00001.safetensors",
        R"("conv.weight"  float32 [2, 3, 4]  96 B)",
        R"("fc.bias.exp_avg"  float32 [1000]  4.00 kB)", R"("lr"     = 0.125)",
        R"("name"   = "adam")"})
    EXPECT_TRUE(contains(shown.out, part)) << part << " is not in\n" << shown.out;
  const Finished one_part = run({"show", saved, "--part", "optimizer"});
  EXPECT_FALSE(contains(one_part.out, "conv.weight")) << one_part.out;
}

TEST_F(LockstepCheckpoint, ListsThoseInAFolderTheNewestFirstAndShowsTheLatest) {
  save("a", 100);
  save("a", 200);
  flip_last_byte(save("a", 300) / "manifest.json");
  fs::remove(folder() / "a" / "latest");
  fs::create_directory_symlink("step-0000000200", folder() / "a" / "latest");
  const Finished shown = run({"show", folder() / "a"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_LT(shown.out.find("step-0000000300  damaged: "), shown.out.find("step-0000000200  step"));
  EXPECT_LT(shown.out.find("step-0000000200  step"), shown.out.find("step-0000000100  step"));
  EXPECT_TRUE(contains(shown.out, "a/step-0000000200: step 200")) << shown.out;
}

TEST_F(LockstepCheckpoint, ShowsJson) {
  const fs::path saved =
      save("a", 100, of_tensors(weights()), adam(std::numeric_limits<double>::infinity()));
  const auto json = nlohmann::json::parse(run({"show", saved, "--json"}).out);
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["ranks"], 1);
  const auto& weight = json["parts"]["model"]["tensors"]["conv.weight"];
  EXPECT_EQ(weight["dtype"], "float32");
  EXPECT_EQ(weight["shape"], (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(weight["bytes"], 96);
  EXPECT_EQ(json["parts"]["optimizer"]["values"]["lr"], "inf");
  EXPECT_EQ(json["parts"]["optimizer"]["values"]["steps"], 7);

  const auto list = nlohmann::json::parse(run({"show", folder() / "a", "--json"}).out);
  EXPECT_EQ(list["checkpoints"].size(), 1U);
  EXPECT_EQ(list["latest"]["step"], 100);
}

TEST_F(LockstepCheckpoint, ShowsAFileOfSafetensors) {
  const fs::path file = folder() / "weights.safetensors";
  save_safetensors(file, weights());
  EXPECT_TRUE(contains(run({"show", file}).out, R"("conv.steps"   int64 []  )"));
  const auto json = nlohmann::json::parse(run({"show", file, "--json"}).out);
  EXPECT_EQ(json["tensors"]["fc.bias"]["bytes"], 4000);
}

// One tensor has a type that LibTorch lacks.
fs::path indexed_weights(const fs::path& folder) {
  fs::create_directory(folder);
  save_safetensors(folder / "model-00001-of-00002.safetensors", weights());
  const std::string header = R"({"f4":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})";
  write_file(
      (folder / "model-00002-of-00002.safetensors").string(),
      std::string{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0} + header + "\1\2\3");
  write_file((folder / "model.safetensors.index.json").string(),
             R"({"weight_map": {"conv.weight": "model-00001-of-00002.safetensors",)"
             R"( "f4": "model-00002-of-00002.safetensors"}})");
  return folder;
}

TEST_F(LockstepCheckpoint, ShowsAFolderOfWeightsFromItsIndex) {
  const fs::path model = indexed_weights(folder() / "model");
  for (const fs::path& path : {model, model / "model.safetensors.index.json"}) {
    const Finished shown = run({"show", path});
    EXPECT_EQ(shown.code, 0) << shown.err;
    for (const char* part :
         {": 2 tensors of 99 B", "model.safetensors.index.json", "model-00002-of-00002.safetensors",
          R"("f4"           "F4" [2, 3])", R"("conv.weight"  float32 [2, 3, 4])"})
      EXPECT_TRUE(contains(shown.out, part)) << part << " is not in\n" << shown.out;
    EXPECT_FALSE(contains(shown.out, "fc.bias")) << shown.out;
  }
  const auto json = nlohmann::json::parse(run({"show", model, "--json"}).out);
  EXPECT_EQ(json["files"].size(), 2U);
  EXPECT_EQ(json["tensors"]["f4"]["dtype"], "F4");
  EXPECT_EQ(json["tensors"]["f4"]["shape"], (std::vector<int>{2, 3}));
}

TEST_F(LockstepCheckpoint, VerifiesAFolderOfWeights) {
  const fs::path model = indexed_weights(folder() / "model");
  const Finished verified = run({"verify", model});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_TRUE(contains(verified.out, "readable, 2 tensors in 2 files as the index says"))
      << verified.out;
  fs::resize_file(model / "model-00002-of-00002.safetensors", 60);
  EXPECT_EQ(run({"verify", model}).code, 65);
  fs::remove(model / "model-00002-of-00002.safetensors");
  const Finished missing = run({"verify", model});
  EXPECT_EQ(missing.code, 74) << missing.out;
  EXPECT_TRUE(contains(missing.out, "which is missing")) << missing.out;
}

TEST_F(LockstepCheckpoint, ComparesAFolderOfWeights) {
  const fs::path model = indexed_weights(folder() / "model");
  const fs::path other = indexed_weights(folder() / "other");
  EXPECT_EQ(run({"diff", model, other}).code, 0);
  flip_last_byte(other / "model-00002-of-00002.safetensors");
  const Finished compared = run({"diff", model, other});
  EXPECT_EQ(compared.code, 1) << compared.err;
  EXPECT_TRUE(contains(compared.out, R"(model "f4": 1 of 3 elements differ)")) << compared.out;
}

// --- verify -------------------------------------------------------------------------------------

TEST_F(LockstepCheckpoint, VerifiesAllInAFolder) {
  save("a", 100);
  save("a", 200);
  const fs::path other = save("b", 5);
  const Finished verified = run({"verify", folder() / "a", other});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  EXPECT_EQ(lines_in(verified.out), 3) << verified.out;
  EXPECT_TRUE(contains(verified.out, other.string() + ": ok, step 5, 2 files")) << verified.out;
  EXPECT_EQ(verified.err, "");
}

TEST_F(LockstepCheckpoint, NamesFileAndTensorOfWhatIsDamagedAndGoesOn) {
  save("a", 100);
  const fs::path damaged = save("a", 200);
  const fs::path truncated = save("a", 300);
  flip_last_byte(file_of(damaged, "model"));
  fs::resize_file(file_of(truncated, "optimizer"), 100);
  const Finished verified = run({"verify", folder() / "a"});
  EXPECT_EQ(verified.code, 65);
  EXPECT_EQ(lines_in(verified.out), 3) << verified.out;
  EXPECT_TRUE(contains(verified.out, "step-0000000300: damaged: ")) << verified.out;
  EXPECT_TRUE(contains(verified.out, file_of(truncated, "optimizer").string())) << verified.out;
  EXPECT_TRUE(contains(verified.out, file_of(damaged, "model").string() + ": tensor \"fc.bias\""))
      << verified.out;
  EXPECT_TRUE(contains(verified.out, "step-0000000100: ok")) << verified.out;
}

TEST_F(LockstepCheckpoint, FindsAMissingFileAndAMissingManifest) {
  const fs::path saved = save("a", 100);
  fs::remove(file_of(saved, "model"));
  EXPECT_EQ(run({"verify", saved}).code, 65);
  fs::remove(saved / "manifest.json");
  EXPECT_EQ(run({"verify", folder() / "a"}).code, 65);
}

// --- diff ---------------------------------------------------------------------------------------

TEST_F(LockstepCheckpoint, PrintsNothingForEqualCheckpoints) {
  const Finished same = run({"diff", save("a", 100), save("b", 100)});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out + same.err, "");
}

TEST_F(LockstepCheckpoint, ReportsDifferences) {
  NamedTensors changed = weights();
  changed[0].second = changed[0].second.clone();
  changed[0].second.view(-1)[5] += 0.5;
  changed[0].second.view(-1)[6] = std::numeric_limits<float>::quiet_NaN();
  changed[1].second = changed[1].second.to(at::kInt);
  changed[2].first = "fc.other";
  const fs::path a = save("a", 100);
  const fs::path b = save("b", 200, of_tensors(changed), adam(0.25));
  const Finished different = run({"diff", a, b});
  EXPECT_EQ(different.code, 1) << different.err;
  EXPECT_EQ(different.out,
            "step: 100 in A, 200 in B\n"
            "model \"conv.steps\": int64 [] in A, int32 [] in B\n"
            "model \"conv.weight\": 2 of 24 elements differ, by 0.5 at most, 1 of them no numbers\n"
            "model \"fc.bias\": only in A, float32 [1000]\n"
            "model \"fc.other\": only in B, float32 [1000]\n"
            "optimizer \"lr\": 0.125 in A, 0.25 in B\n");
  const Finished optimizers = run({"diff", a, b, "--part", "optimizer"});
  EXPECT_EQ(optimizers.code, 1);
  EXPECT_FALSE(contains(optimizers.out, "conv")) << optimizers.out;
}

TEST_F(LockstepCheckpoint, ComparesComplexNumbers) {
  const at::Tensor ones = at::ones({3}, at::kComplexFloat);
  at::Tensor other = ones.clone();
  other[1] += c10::complex<float>(0, 2);
  const fs::path a = save("a", 1, of_tensors({{"filter", ones}}));
  const fs::path b = save("b", 1, of_tensors({{"filter", other}}));
  EXPECT_TRUE(contains(run({"show", a}).out, R"("filter"  complex64 [3]  24 B)"));
  EXPECT_EQ(run({"diff", a, b}).out, "model \"filter\": 1 of 3 elements differ, by 2 at most\n");
}

// scp -r and cp -rL copy a link as a folder.
TEST_F(LockstepCheckpoint, ReadsAFolderThatWasCopiedWithLinksFollowed) {
  save("a", 100);
  save("a", 200);
  const fs::path copy = folder() / "copy";
  fs::copy(folder() / "a", copy, fs::copy_options::recursive);
  ASSERT_TRUE(fs::is_directory(fs::symlink_status(copy / "latest")));
  const Finished verified = run({"verify", copy});
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_EQ(lines_in(verified.out), 2) << verified.out;
  EXPECT_TRUE(contains(run({"show", copy}).out, "copy/step-0000000200: step 200"));
  EXPECT_EQ(run({"diff", copy, folder() / "a"}).code, 0);
  EXPECT_TRUE(contains(run({"show", copy / "latest"}).out, "step 200"));
}

TEST_F(LockstepCheckpoint, ComparesAFileWithAPart) {
  const fs::path saved = save("a", 100);
  const fs::path file = folder() / "weights.safetensors";
  save_safetensors(file, weights());
  EXPECT_EQ(run({"diff", saved, file}).code, 0);
  EXPECT_EQ(run({"diff", file, folder() / "a", "--part", "optimizer"}).code, 1);
  save_safetensors(file, {{"fc.bias", at::full({1000}, 3.0F)}});
  const Finished different = run({"diff", file, saved});
  EXPECT_EQ(different.code, 1);
  EXPECT_TRUE(contains(different.out, "1000 of 1000 elements differ, by 2 at most"))
      << different.out;
}

TEST_F(LockstepCheckpoint, TroubleIsNoDifference) {
  const fs::path saved = save("a", 100);
  expect_one_line(run({"diff", saved, folder() / "none"}), 2, "no such file");
  expect_one_line(run({"diff", saved, saved, "--part", "odd"}), 2, "but: model, optimizer");
  const fs::path damaged = save("b", 100);
  flip_last_byte(file_of(damaged, "model"));
  expect_one_line(run({"diff", saved, damaged}), 2, "tensor \"fc.bias\"");
}

// --- merge --------------------------------------------------------------------------------------

TEST_F(LockstepCheckpoint, MergesAPartIntoOneFile) {
  save("a", 100);
  const fs::path out = folder() / "merged.safetensors";
  const Finished merged = run({"merge", folder() / "a", out});
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_EQ(run({"diff", folder() / "a", out}).code, 0);
  EXPECT_EQ(load_safetensors(out).metadata.at("format"), "pt");

  expect_one_line(run({"merge", folder() / "a", out}), 73, "--force");
  EXPECT_EQ(run({"merge", folder() / "a", out, "--part", "optimizer", "--force"}).code, 0);
  EXPECT_EQ(load_safetensors(out).tensors.size(), 1U);
}

TEST_F(LockstepCheckpoint, LeavesNothingWhereItCannotMerge) {
  const fs::path damaged = save("a", 100);
  flip_last_byte(file_of(damaged, "model"));
  const fs::path out = folder() / "merged.safetensors";
  expect_one_line(run({"merge", damaged, out}), 65, "tensor \"fc.bias\"");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 1);
  expect_one_line(run({"merge", save("b", 1), folder() / "none" / "out"}), 74, "No such file");
}

// --- The command line ---------------------------------------------------------------------------

TEST_F(LockstepCheckpoint, HasHelpWithExamplesForEach) {
  EXPECT_TRUE(contains(run({"--help"}).out, "lockstep checkpoint verify runs/a"));
  for (const char* command : {"show", "verify", "diff", "merge"}) {
    const Finished help = run({command, "--help"});
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_TRUE(contains(help.out, std::string("  lockstep checkpoint ") + command + " runs/a"))
        << help.out;
  }
}

TEST_F(LockstepCheckpoint, RefusesWhatIsNoUse) {
  for (const Arguments& arguments : {Arguments{}, {"fly"}, {"--part"}})
    expect_one_line(run(arguments), 64, "lockstep checkpoint --help\n");
  for (const Arguments& arguments : {Arguments{"show"},
                                     {"verify"},
                                     {"diff", "a"},
                                     {"merge", "a"},
                                     {"merge", "a", "b", "--part"},
                                     {"merge", "a", "b", "c"},
                                     {"show", "a", "--odd"}}) {
    const std::string command = "lockstep checkpoint " + arguments.front();
    const Finished refused = run(arguments);
    expect_one_line(refused, 64, "; see " + command + " --help\n");
    EXPECT_TRUE(refused.err.starts_with(command + ": ")) << refused.err;
  }
  expect_one_line(run({"fly"}), 64, "the subcommands are show, verify, diff, merge");
  for (const auto& [arguments, question] :
       {std::pair{Arguments{"sho", "a"}, "did you mean `lockstep checkpoint show`?\n"},
        {Arguments{"show", "--jsn", "a"}, "did you mean --json?\n"}}) {
    const Finished refused = run(arguments);
    expect_one_line(refused, 64, question);
    EXPECT_TRUE(refused.err.ends_with(question)) << refused.err;
  }
  expect_one_line(run({"show", folder()}), 66, "holds no checkpoint");
  expect_one_line(run({"show", "/etc/passwd"}), 66,
                  "/etc/passwd is neither a folder nor a safetensors file");
  expect_one_line(run({"verify", folder() / "none"}), 66, "no such file");
  expect_one_line(run({"show", save("a", 1), "--part", "odd"}), 64, "but: model, optimizer");
}

TEST_F(LockstepCheckpoint, DoesNotMindAReaderThatIsGone) {
  save("a", 100);
  const std::string command =
      std::string(LOCKSTEP_CHECKPOINT) + " show '" + folder().string() + "/a'; echo code $? >&2";
  const Finished gone = run_command({"/bin/sh", "-c", "(" + command + ") | true"});
  EXPECT_EQ(gone.err, "code 0\n");
  const Finished closed = run_command({"/bin/sh", "-c", "(" + command + ") >&-"});
  EXPECT_EQ(closed.err, "code 0\n");
  const Finished full = run_command({"/bin/sh", "-c", "(" + command + ") > /dev/full"});
  EXPECT_TRUE(contains(full.err, "No space left on device\ncode 74\n")) << full.err;
}

// stderr and stdout are the same terminal.
std::string on_terminal(Arguments arguments) {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  const FileDescriptor owned(terminal);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; (got = ::read(terminal, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  ::waitpid(pid, nullptr, 0);
  return text;
}

TEST_F(LockstepCheckpoint, ShowsHowFarItIsOnATerminalOnly) {
  const fs::path saved = save("a", 100);
  const std::string text = on_terminal({LOCKSTEP_CHECKPOINT, "verify", saved});
  EXPECT_TRUE(contains(text, "\rstep-0000000100  ")) << text;
  EXPECT_TRUE(contains(text, "\r\033[K" + saved.string() + ": ok")) << text;
}

}  // namespace
}  // namespace lockstep::test::lockstep_checkpoint_test
