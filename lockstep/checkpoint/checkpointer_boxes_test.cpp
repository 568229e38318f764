// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/placed_box.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::checkpoint::checkpointer_boxes_test {
namespace {

namespace fs = std::filesystem;

using Shape = std::vector<std::int64_t>;

class Parts : public Stateful {
 public:
  explicit Parts(StateDict parts) : state_(std::move(parts)) {}
  explicit Parts(StateRequest request) : request_(std::move(request)) {}

  StateDict state_dict() override { return state_; }
  StateRequest wanted(const StateDict&) override { return request_; }
  void load_state_dict(StateDict state) override { state_ = std::move(state); }

  const StateTensor& tensor(const std::string& name) const { return state_.tensors.at(name); }

 private:
  StateDict state_;
  StateRequest request_;
};

using Cut = std::function<Boxes(const Shape&, int rank, int ranks)>;

std::pair<std::int64_t, std::int64_t> even(std::int64_t size, int rank, int ranks) {
  const std::int64_t begin = size * rank / ranks;
  return {begin, size * (rank + 1) / ranks - begin};
}

// Rank 0 has nothing, and each rank about twice the previous one's.
std::pair<std::int64_t, std::int64_t> uneven(std::int64_t size, int rank, int ranks) {
  const auto begin_of = [&](int r) {
    return r == 0 ? 0 : size * ((1 << (r - 1)) - 1) / ((1 << (ranks - 1)) - 1);
  };
  const std::int64_t begin = rank == 0 ? 0 : begin_of(rank);
  const std::int64_t end = rank == 0 ? 0 : begin_of(rank + 1);
  return {begin, end - begin};
}

// `segments` adjacent segments of equal size along `dim`, each cut.
Cut cut_along(std::size_t dim, decltype(&even) split = even, int segments = 1) {
  return [=](const Shape& shape, int rank, int ranks) {
    Boxes boxes{.list = {}, .cat_dim = static_cast<std::int64_t>(dim)};
    const std::int64_t segment = shape[dim] / segments;
    const auto [begin, size] = split(segment, rank, ranks);
    for (int i = 0; i < segments; ++i) {
      Box box{.offsets = Shape(shape.size()), .sizes = shape};
      box.offsets[dim] = i * segment + begin;
      box.sizes[dim] = size;
      boxes.list.push_back(box);
    }
    return boxes;
  };
}

// Rows of the left half, and other rows of the right half.
Boxes crossed(const Shape& shape, int rank, int ranks) {
  Boxes left = cut_along(0, even)(shape, rank, ranks);
  Boxes right = cut_along(0, uneven)(shape, ranks - 1 - rank, ranks);
  if (ranks == 1) right = left;
  Box a = left.list[0], b = right.list[0];
  a.sizes[1] = shape[1] / 2;
  b.offsets[1] = shape[1] / 2;
  b.sizes[1] = shape[1] - shape[1] / 2;
  return {.list = {b, a}};
}

at::Tensor local_of(const at::Tensor& whole, const Boxes& boxes) {
  std::vector<at::Tensor> parts;
  for (const Box& box : boxes.list) parts.push_back(view_in_whole(whole, box));
  if (parts.size() == 1) return parts[0].contiguous();
  if (local_shape(boxes).size() != whole.sizes().size())
    for (at::Tensor& part : parts) part = part.flatten();
  return at::cat(parts, boxes.cat_dim);
}

StateTensor part_of(const at::Tensor& whole, const Boxes& boxes) {
  return {.data = local_of(whole, boxes), .shape = whole.sizes().vec(), .boxes = boxes};
}

class CheckpointsOfBoxes : public testing::Test {
 protected:
  void save(int ranks, const fs::path& folder, const at::Tensor& whole, const Cut& cut,
            bool async = false) {
    const Shape shape = whole.sizes().vec();
    run_in_process(ranks, [&](ProcessGroup& world) {
      StateDict state;
      state.tensors["weight"] = part_of(whole, cut(shape, world.rank(), ranks));
      Parts parts(state);
      Checkpointer checkpoints(folder, world, {.async = async});
      checkpoints.save(1, {{"model", &parts}});
      checkpoints.wait();
    });
  }

  void expect_loaded(int ranks, const fs::path& folder, const at::Tensor& whole, const Cut& cut) {
    const Shape shape = whole.sizes().vec();
    run_in_process(ranks, [&](ProcessGroup& world) {
      const Boxes boxes = cut(shape, world.rank(), ranks);
      Parts parts(StateRequest{{"weight", all_of(boxes)}});
      load_checkpoint(folder, {{"model", &parts}}, world);
      const StateTensor& loaded = parts.tensor("weight");
      EXPECT_EQ(loaded.shape, shape);
      EXPECT_EQ(loaded.boxes, boxes);
      EXPECT_TRUE(at::equal(loaded.data, local_of(whole, boxes)));
    });
  }

  // With every pair of these cuts, on different numbers of ranks.
  void expect_any_to_any(const at::Tensor& whole, const std::map<std::string, Cut>& cuts) {
    for (const auto& [from, saved] : cuts)
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE("saved as " + from + " by " + std::to_string(ranks));
        const fs::path folder = root() / (from + std::to_string(ranks));
        save(ranks, folder, whole, saved);
        EXPECT_TRUE(at::equal(CheckpointReader(folder / "latest").read("model", "weight"), whole));
        int others = ranks;
        for (const auto& [to, loaded] : cuts) {
          SCOPED_TRACE("loaded as " + to);
          others = others % 4 + 1;
          expect_loaded(others, folder, whole, loaded);
        }
      }
  }

  fs::path root() const { return scratch_.path() / "runs"; }

  const test::ScratchDirectory scratch_;
};

TEST_F(CheckpointsOfBoxes, AreLoadedAsAnyOthersByAnyRanks) {
  expect_any_to_any(at::randn({14, 18}), {{"rows", cut_along(0)},
                                          {"columns", cut_along(1)},
                                          {"uneven rows", cut_along(0, uneven)},
                                          {"uneven columns", cut_along(1, uneven)},
                                          {"qkv columns", cut_along(1, even, 3)},
                                          {"qkv rows", cut_along(0, uneven, 2)},
                                          {"crossed", crossed}});
}

TEST_F(CheckpointsOfBoxes, AreLoadedWithThreeDimensions) {
  expect_any_to_any(at::randn({5, 6, 9}, at::kDouble), {{"first", cut_along(0)},
                                                        {"second", cut_along(1, even, 2)},
                                                        {"third", cut_along(2, uneven, 3)},
                                                        {"crossed", crossed}});
}

// Runs begin and end in the middle of a read.
TEST_F(CheckpointsOfBoxes, AreLoadedWhenLargerThanOneRead) {
  expect_any_to_any(at::randn({701, 603}), {{"rows", cut_along(0, uneven)},
                                            {"qkv columns", cut_along(1, even, 3)},
                                            {"crossed", crossed}});
}

TEST_F(CheckpointsOfBoxes, AreTheSameFileAsAWholeTensor) {
  const at::Tensor weight = at::arange(12 * 18, at::kInt).reshape({12, 18});
  StateDict state;
  state.tensors["weight"] = whole(weight);
  Parts parts(state);
  Checkpointer(root() / "whole", ProcessGroup::self()).save(1, {{"model", &parts}});
  for (const bool async : {false, true}) {
    const fs::path folder = root() / (async ? "async" : "sync");
    save(3, folder, weight, cut_along(1, even, 3), async);
    const auto bytes = [](const fs::path& run) {
      std::ifstream file(run / "latest" / "model-00001-of-00001.safetensors", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_GT(bytes(folder).size(), weight.nbytes());
    EXPECT_EQ(bytes(folder), bytes(root() / "whole"));
  }
}

TEST_F(CheckpointsOfBoxes, HoldRangesOfTheirLocalTensors) {
  const at::Tensor weight = at::randn({8, 12});
  const auto range_of = [&](int rank) {
    const Boxes boxes = cut_along(1, even, 3)({8, 12}, rank % 2, 2);
    const std::int64_t elements = elements_of(boxes);
    return rank < 2 ? ElementRange{.begin = 0, .end = 17, .into = {}, .boxes = boxes}
                    : ElementRange{.begin = 17, .end = elements, .into = {}, .boxes = boxes};
  };
  run_in_process(4, [&](ProcessGroup& world) {
    const ElementRange range = range_of(world.rank());
    const at::Tensor data =
        local_of(weight, range.boxes).flatten().slice(0, range.begin, range.end);
    StateDict state;
    state.tensors["weight"] = {
        .data = data, .shape = {8, 12}, .begin = range.begin, .boxes = range.boxes};
    Parts saved(state), loaded(StateRequest{{"weight", range}});
    Checkpointer(root(), world).save(1, {{"optimizer", &saved}});
    world.barrier();
    load_checkpoint(root(), {{"optimizer", &loaded}}, world);
    EXPECT_EQ(loaded.tensor("weight").begin, range.begin);
    EXPECT_TRUE(at::equal(loaded.tensor("weight").data, data));
  });
  EXPECT_TRUE(at::equal(CheckpointReader(root() / "latest").read("optimizer", "weight"), weight));
}

TEST_F(CheckpointsOfBoxes, GoWithRangesOfElementsAndCopiesOnOtherRanks) {
  const at::Tensor weight = at::randn({6, 5});
  run_in_process(4, [&](ProcessGroup& world) {
    StateDict state;
    StateTensor& mine = state.tensors["weight"];
    if (world.rank() == 0)
      mine = {.data = weight.flatten().slice(0, 0, 13), .shape = {6, 5}};
    else if (world.rank() == 1)
      mine = part_of(weight, {.list = {{{2, 3}, {1, 2}}, {{3, 0}, {3, 2}}}});
    else
      mine = part_of(weight, {.list = {{{3, 2}, {3, 3}}}});
    Parts saved(state);
    Checkpointer(root(), world).save(1, {{"model", &saved}});
  });
  EXPECT_TRUE(at::equal(CheckpointReader(root() / "latest").read("model", "weight"), weight));
}

TEST_F(CheckpointsOfBoxes, MayBeEmptyOrWholeOrOfAScalar) {
  const at::Tensor weight = at::randn({4, 3}), scalar = at::full({}, 2.5),
                   nothing = at::zeros({0, 3});
  run_in_process(3, [&](ProcessGroup& world) {
    const bool has = world.rank() == 1;
    const Box all{.offsets = {0, 0}, .sizes = {4, 3}}, none{.offsets = {4, 1}, .sizes = {0, 2}};
    StateDict state;
    state.tensors["weight"] = part_of(weight, {.list = {has ? all : none}});
    state.tensors["halves"] =
        part_of(weight, has ? Boxes{.list = {{{2, 0}, {2, 3}}, none, {{0, 0}, {2, 3}}}}
                            : Boxes{.list = {none}});
    state.tensors["scalar"] = part_of(scalar, {.list = {Box{}}});
    state.tensors["nothing"] = part_of(nothing, {.list = {{{0, world.rank()}, {0, 1}}}});
    Parts saved(state);
    Parts loaded(StateRequest{{"weight", all_of({.list = {none}})},
                              {"halves", all_of({.list = {none, all}})},
                              {"scalar", all_of({.list = {Box{}}})},
                              {"nothing", all_of({.list = {{{0, 0}, {0, 2}}}})}});
    Checkpointer(root(), world).save(1, {{"model", &saved}});
    world.barrier();
    load_checkpoint(root(), {{"model", &loaded}}, world);
    EXPECT_EQ(loaded.tensor("weight").data.sizes(), (Shape{0, 2}));
    EXPECT_TRUE(at::equal(loaded.tensor("halves").data, weight.flatten()));
    EXPECT_TRUE(at::equal(loaded.tensor("scalar").data, scalar));
    EXPECT_EQ(loaded.tensor("nothing").data.sizes(), (Shape{0, 2}));
  });
}

TEST_F(CheckpointsOfBoxes, AreReadIntoTheRequestedTensors) {
  const at::Tensor weight = at::randn({8, 12});
  save(2, root(), weight, cut_along(0));
  const Boxes boxes = cut_along(1, even, 3)({8, 12}, 1, 2);
  const at::Tensor local = at::zeros({8, 6});
  Parts parts(StateRequest{{"weight", all_of(boxes, local)}});
  load_checkpoint(root(), {{"model", &parts}}, ProcessGroup::self());
  EXPECT_TRUE(parts.tensor("weight").data.is_same(local));
  EXPECT_TRUE(at::equal(local, local_of(weight, boxes)));

  Parts twice(StateRequest{{"weight", all_of({.list = {{{0, 3}, {8, 3}}, {{2, 0}, {4, 12}}}})}});
  load_checkpoint(root(), {{"model", &twice}}, ProcessGroup::self());
  EXPECT_TRUE(at::equal(twice.tensor("weight").data, at::cat({weight.slice(1, 3, 6).flatten(),
                                                              weight.slice(0, 2, 6).flatten()})));
}

TEST_F(CheckpointsOfBoxes, AreRefusedOnAllRanksWhereTheyDoNotMakeTheTensor) {
  const auto error_with = [&](const std::vector<Boxes>& of_ranks, Fault fault) {
    std::string text;
    run_in_process(static_cast<int>(of_ranks.size()), [&](ProcessGroup& world) {
      const Boxes& boxes = of_ranks[static_cast<std::size_t>(world.rank())];
      StateDict state;
      state.tensors["weight"] = {
          .data = at::zeros({elements_of(boxes)}), .shape = {4, 6}, .boxes = boxes};
      Parts parts(state);
      Checkpointer checkpoints(root(), world);
      std::string mine;
      EXPECT_EQ(test::fault_of([&] { checkpoints.save(1, {{"model", &parts}}); }, &mine), fault);
      EXPECT_NE(mine.find("model: tensor \"weight\""), std::string::npos) << mine;
      if (world.rank() == 1) text = mine;
      world.barrier();
      for (const auto& entry : fs::directory_iterator(root()))
        EXPECT_EQ(entry.path().filename(), ".lock");
    });
    return text;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const Boxes left{.list = {{{0, 0}, {4, 3}}}}, right{.list = {{{0, 3}, {4, 3}}}};
  expect(error_with({left, {.list = {{{0, 4}, {4, 2}}}}}, Fault::mismatch),
         "is incomplete: no rank has its element [0, 3]");
  expect(error_with({left, {.list = {{{0, 3}, {4, 2}}, {{0, 5}, {3, 1}}}}, left}, Fault::mismatch),
         "is incomplete: no rank has its element [3, 5]");
  expect(error_with({left, left}, Fault::mismatch), "no rank has its element [0, 3]");
  expect(error_with({left, {.list = {{{0, 2}, {4, 4}}}}}, Fault::mismatch),
         "lies on ranks 0 and 1 in parts that overlap: offsets [0, 0] and sizes [4, 3], offsets "
         "[0, 2] and sizes [4, 4]");
  expect(error_with({left, {.list = {right.list[0], {{3, 3}, {1, 1}}}}}, Fault::mismatch),
         "lies twice on rank 1");
  expect(
      error_with({{.list = {{{0, 0}, {4, 7}}}}, right}, Fault::misuse),
      "rank 0: model: tensor \"weight\": a box of offsets [0, 0] and sizes [4, 7] does not lie in "
      "a tensor of shape [4, 6]");
}

TEST_F(CheckpointsOfBoxes, ThatTheDataDoesNotFillAreRefused) {
  StateDict state;
  state.tensors["weight"] = {
      .data = at::zeros({13}), .shape = {4, 6}, .boxes = {.list = {{{0, 0}, {4, 3}}}}};
  Parts parts(state);
  std::string text;
  EXPECT_EQ(test::fault_of(
                [&] {
                  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &parts}});
                },
                &text),
            Fault::misuse);
  EXPECT_NE(text.find("has no elements 0 to 13: there are 12 on this rank"), std::string::npos)
      << text;
  state.tensors["weight"] = {.data = at::zeros({12}),
                             .shape = {4, 6},
                             .strides = {1, 4},
                             .boxes = {.list = {{{0, 0}, {4, 3}}}}};
  Parts strided(state);
  EXPECT_EQ(test::fault_of(
                [&] {
                  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &strided}});
                },
                &text),
            Fault::misuse);
  EXPECT_NE(text.find("boxes and strides"), std::string::npos) << text;
}

TEST_F(CheckpointsOfBoxes, ThatAreNotThereAreRefusedBeforeAnythingIsRead) {
  StateDict state;
  state.tensors["first"] = whole(at::randn({4, 6}));
  state.tensors["weight"] = whole(at::randn({4, 6}));
  Parts saved(state);
  Checkpointer(root(), ProcessGroup::self()).save(1, {{"model", &saved}});
  const auto error_of_request = [&](const ElementRange& range) {
    const at::Tensor first = at::zeros({4, 6});
    Parts parts(StateRequest{{"first", {.begin = 0, .end = 24, .into = first}}, {"weight", range}});
    std::string text;
    const auto load = [&] { load_checkpoint(root(), {{"model", &parts}}, ProcessGroup::self()); };
    EXPECT_EQ(test::fault_of(load, &text), Fault::misuse);
    EXPECT_TRUE(at::equal(first, at::zeros({4, 6})));
    return text;
  };
  const Boxes boxes{.list = {{{0, 1}, {4, 2}}}}, outside{.list = {{{0, 5}, {4, 2}}}};
  EXPECT_NE(error_of_request(all_of(outside)).find("\"weight\": a box of offsets [0, 5]"),
            std::string::npos);
  EXPECT_NE(error_of_request({.begin = 0, .end = 9, .into = {}, .boxes = boxes})
                .find("does not have the requested elements"),
            std::string::npos);
  EXPECT_NE(error_of_request(all_of(boxes, at::zeros({4, 3}))).find("`into` does not fit"),
            std::string::npos);
}

TEST_F(CheckpointsOfBoxes, AreNotLoadedFromADamagedFile) {
  save(2, root(), at::randn({4, 6}), cut_along(1));
  const fs::path file = root() / "latest" / "model-00001-of-00001.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('\x55');
  stream.close();
  const at::Tensor local = at::zeros({4, 2});  // The damaged byte is outside its part.
  Parts parts(StateRequest{{"weight", all_of({.list = {{{0, 1}, {4, 2}}}}, local)}});
  EXPECT_EQ(test::fault_of([&] {
              load_checkpoint(root(), {{"model", &parts}}, ProcessGroup::self());
            }),
            Fault::corrupt);
  EXPECT_TRUE(at::equal(local, at::zeros({4, 2})));
}

// -1 if the kernel does not count them.
std::int64_t reads_so_far() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  for (std::int64_t count = 0; counters >> name >> count;)
    if (name == "syscr:") return count;
  return -1;
}

TEST_F(CheckpointsOfBoxes, AreReadWithFewSystemCalls) {
  if (reads_so_far() < 0) GTEST_SKIP() << "there is no /proc/self/io";
  const at::Tensor weight = at::randn({1 << 15, 32});  // 4 MB; a column has 32768 runs.
  save(2, root(), weight, cut_along(1));
  const CheckpointReader reader(root() / "latest");
  const std::int64_t before = reads_so_far();
  const Boxes columns = cut_along(1)({1 << 15, 32}, 1, 3);
  const StateDict loaded = reader.read("model", {{"weight", all_of(columns)}});
  EXPECT_LT(reads_so_far() - before, 40);
  EXPECT_TRUE(at::equal(loaded.tensors.at("weight").data, local_of(weight, columns)));
}

}  // namespace
}  // namespace lockstep::checkpoint::checkpointer_boxes_test
