// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/rigs/random_pipeline_order.h"

// tests/python/pipeline_test.py compares the orders with PyTorch's.
namespace lockstep::parallel::pipeline_order_test {
namespace {

using test::fault_of;
using test::random_pipeline_order;

PipelineOrder order_of(const std::string& text, int microbatches, std::vector<int> rank_of_stage) {
  PipelineOrder order{microbatches, std::move(rank_of_stage), {{}}};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "/")
      order.actions.emplace_back();
    else
      order.actions.back().push_back(parse_pipeline_action(word));
  }
  return order;
}

std::string complaint_about(const PipelineOrder& order) {
  std::string text;
  EXPECT_EQ(fault_of([&] { check_pipeline_order(order); }, &text), Fault::misuse);
  return text;
}

void expect_complaint(const PipelineOrder& order, const std::string& part) {
  const std::string text = complaint_about(order);
  EXPECT_NE(text.find(part), text.npos) << text;
}

// Tests run concurrently.
std::string file_of_this_test() {
  return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() +
         ".order.csv";
}

std::string file_with(const std::string& text) {
  std::string file = file_of_this_test();
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

TEST(PipelineOrder, ActionsAreWrittenAsPyTorchDoes) {
  for (const char* text : {"0F0", "2B5", "13I107", "4W31"})
    EXPECT_EQ(to_string(parse_pipeline_action(text)), text);
  for (const char* text : {"", "F", "2F", "F5", "2F5 ", " 2F5", "2f5", "2X5", "-2F5", "2F-5",
                           "2FB5", "+2F5", "2F99999999999", "2SEND_F5"}) {
    std::string why;
    EXPECT_EQ(fault_of([&] { parse_pipeline_action(text); }, &why), Fault::misuse) << text;
    EXPECT_NE(why.find("2F5"), why.npos) << why;
  }
}

TEST(PipelineOrder, EachScheduleHasAName) {
  using enum PipelineSchedule;
  for (const auto schedule : {gpipe, one_f_one_b, interleaved, looped_bfs, zero_bubble, zbv})
    EXPECT_EQ(parse_pipeline_schedule(name_of(schedule)), schedule);
  std::string why;
  EXPECT_EQ(fault_of([] { parse_pipeline_schedule("1F1B"); }, &why), Fault::misuse);
  EXPECT_NE(why.find("'1F1B', but gpipe, 1f1b, interleaved, looped_bfs, zb1p, zbv"), why.npos)
      << why;
}

TEST(PipelineOrder, OneForwardOneBackwardOfFewMicrobatches) {
  const auto order = make_pipeline_order(PipelineSchedule::one_f_one_b, {4, 2});
  EXPECT_EQ(to_string(order),
            "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n2F0 2F1 2B0 2B1\n"
            "3F0 3B0 3F1 3B1\n");
  check_pipeline_order(order);
}

TEST(PipelineOrder, StagesOfZbvGoDownTheRanksAndBack) {
  const auto order = make_pipeline_order(PipelineSchedule::zbv, {3, 4});
  EXPECT_EQ(order.rank_of_stage, (std::vector{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(make_pipeline_order(PipelineSchedule::interleaved, {3, 4}).rank_of_stage,
            (std::vector{0, 1, 2, 0, 1, 2}));
}

TEST(PipelineOrder, ImpossibleShapesAreRefused) {
  using enum PipelineSchedule;
  const auto complaint = [](PipelineSchedule schedule, PipelineShape shape) {
    std::string why;
    EXPECT_EQ(fault_of([&] { make_pipeline_order(schedule, shape); }, &why), Fault::misuse);
    return why;
  };
  EXPECT_NE(complaint(interleaved, {4, 9})
                .find("9 are no multiple of 2 rounds; the nearest that "
                      "fit are 8 and 10"),
            std::string::npos);
  EXPECT_NE(complaint(zero_bubble, {2, 7}).find("6 and 8"), std::string::npos);
  EXPECT_NE(complaint(gpipe, {2, 4, 2}).find("schedule gpipe has 1 stage on each rank, not 2"),
            std::string::npos);
  EXPECT_NE(complaint(zbv, {2, 4, 1}).find("zbv has 2 stages on each rank, not 1"),
            std::string::npos);
  EXPECT_NE(complaint(looped_bfs, {2, 4, -1}).find("at least 1 stage on each rank, not -1"),
            std::string::npos);
  EXPECT_NE(complaint(gpipe, {0, 4}).find("0 ranks and 4 microbatches"), std::string::npos);
  EXPECT_NE(complaint(gpipe, {4, 0}).find("4 ranks and 0 microbatches"), std::string::npos);
}

TEST(PipelineOrder, RandomOrdersAreValidAndDiffer) {
  std::vector<PipelineOrder> orders;
  int whole = 0;
  int split = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const PipelineOrder order = random_pipeline_order(seed);
    check_pipeline_order(order);
    EXPECT_EQ(order, random_pipeline_order(seed));
    EXPECT_TRUE(order.ranks() <= 4 && order.stages() <= 16 && order.microbatches <= 8);
    const std::string text = to_string(order);
    whole += text.find('B') != text.npos ? 1 : 0;
    split += text.find('W') != text.npos ? 1 : 0;
    orders.push_back(order);
  }
  EXPECT_GT(whole, 500);
  EXPECT_GT(split, 500);
  std::sort(orders.begin(), orders.end(), [](const PipelineOrder& a, const PipelineOrder& b) {
    return to_string(a) < to_string(b);
  });
  EXPECT_GT(std::unique(orders.begin(), orders.end()) - orders.begin(), 900);
}

TEST(PipelineOrder, FilesKeepOrders) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const PipelineOrder order = random_pipeline_order(seed);
    const std::string file = file_of_this_test();
    write_pipeline_order(order, file);
    EXPECT_EQ(read_pipeline_order(file), order);
  }
}

TEST(PipelineOrder, ARankWithoutActionsKeepsItsLine) {
  const PipelineOrder order = order_of(" / 0F0 0B0", 1, {1});
  const std::string file = file_of_this_test();
  write_pipeline_order(order, file);
  EXPECT_EQ(read_pipeline_order(file), order);
}

TEST(PipelineOrder, FilesMayHaveEmptyFieldsAndAnyLineEnds) {
  const auto order =
      read_pipeline_order(file_with("0F0,,, 0F1 ,\"0B0\",0B1\r\n,1F0,1B0,\"\",1F1,1B1"));
  EXPECT_EQ(order, order_of("0F0 0F1 0B0 0B1 / 1F0 1B0 1F1 1B1", 2, {0, 1}));
  EXPECT_EQ(read_pipeline_order(file_with("0F0,0B0\n\n\n")), order_of("0F0 0B0", 1, {0}));
}

TEST(PipelineOrder, ABadFileIsNamedWithTheLine) {
  const auto complaint = [](const std::string& file) {
    std::string why;
    fault_of([&] { read_pipeline_order(file); }, &why);
    return why;
  };
  EXPECT_NE(complaint(file_with("0F0,0B0\n1F0,1SEND_B0\n")).find("order.csv:2: '1SEND_B0' is not"),
            std::string::npos);
  EXPECT_NE(complaint(file_with("0F0,0B1000000\n")).find("0B1000000 on rank 0"), std::string::npos);
  EXPECT_EQ(fault_of([] { read_pipeline_order("/nowhere/order.csv"); }), Fault::system);
  EXPECT_EQ(fault_of([] { write_pipeline_order({}, "/nowhere/order.csv"); }), Fault::system);
  EXPECT_EQ(fault_of([] { read_pipeline_order("/"); }), Fault::system);
  // check_pipeline_order() reports missing actions.
  expect_complaint(read_pipeline_order(file_with("0F0,0B0,2F0,2B0\n")), "stage 1 is on rank -1 of");
  expect_complaint(read_pipeline_order(file_with("")), "there is no stage");
}

TEST(CheckPipelineOrder, NamesWhatIsWrongWithTheShape) {
  expect_complaint(order_of("0F0 0B0", 0, {0}), "0 microbatches");
  expect_complaint(order_of("0F0 0B0", 1, {1}), "stage 0 is on rank 1 of 1");
  expect_complaint(order_of("0F0 0B0 / ", 1, {0}), "rank 1 has no stage");
}

TEST(CheckPipelineOrder, NamesEachActionThatIsWrong) {
  expect_complaint(order_of("0F0 0B0", 2, {0}), "has 1 fault:\n  0F1 and 0B1 are missing");
  expect_complaint(order_of("0F0", 1, {0}), "\n  0B0 is missing");
  expect_complaint(order_of("0B0", 1, {0}), "has 2 faults");
  expect_complaint(order_of("0F0 0I0", 1, {0}), "\n  0W0 is missing");
  expect_complaint(order_of("0F0 0W0", 1, {0}), "\n  0I0 is missing");
  expect_complaint(order_of("0F0 0F0 0B0", 1, {0}), "\n  rank 0: 0F0 comes again");
  expect_complaint(order_of("0F0 0B0 1F0 1B0", 1, {0}), "rank 0: 1F0 is of none of the 1 stages");
  expect_complaint(order_of("0F0 0B0 0F1", 1, {0}), "0F1 is of none of the 1 microbatches");
  expect_complaint(order_of("0F0 0B0 / 1F0 0B0 1B0", 1, {0, 1}),
                   "rank 1: 0B0 is of a stage on rank 0");
  expect_complaint(order_of("0B0 0F0", 1, {0}), "has 1 fault:\n  rank 0: 0B0 comes before 0F0");
  expect_complaint(order_of("0F0 0W0 0I0", 1, {0}), "rank 0: 0W0 comes before 0I0");
  expect_complaint(order_of("0F0 0B0 0W0", 1, {0}), "rank 0: 0W0 comes beside 0B0");
  expect_complaint(order_of("0F0 0I0 0B0", 1, {0}), "rank 0: 0B0 comes beside 0I0");
}

TEST(CheckPipelineOrder, ShowsTenThingsAndCountsTheOthers) {
  const std::string text = complaint_about(order_of("0F0", 20, {0}));
  EXPECT_NE(text.find("has 20 faults:"), text.npos) << text;
  EXPECT_NE(text.find("\n  0F9 and 0B9 are missing\n  and 10 more"), text.npos) << text;
  // Counted, not enumerated.
  const std::string many = complaint_about(order_of("0F0 0B0", 2'000'000'000, {0}));
  EXPECT_NE(many.find("1999999999 faults"), many.npos) << many;
}

TEST(CheckPipelineOrder, NamesTheCircleInWhichRanksWait) {
  expect_complaint(order_of("1F0 1B0 0F0 0B0", 1, {0, 0}),
                   "rank 0 in 1F0 for 0F0, which it does later");
  // Rank 2 waits as well, but no rank waits for it.
  expect_complaint(order_of("0F0 0B0 0F1 0B1 / 1F0 1F1 1B0 1B1 / 2F0 2F1 2B0 2B1", 2, {0, 1, 2}),
                   "wait for each other: rank 0 in 0B0 for 1B0 of rank 1; rank 1 in 1F1 for 0F1 of "
                   "rank 0");
}

TEST(CheckPipelineOrder, SwappedActionsOfAValidOrderAreFoundOrAreValid) {
  // After an exchange of neighbours, the check never hangs.
  int refused = 0;
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    PipelineOrder order = random_pipeline_order(seed);
    auto& actions = order.actions[seed % order.actions.size()];
    std::swap(actions[seed % actions.size()], actions[seed * 7 % actions.size()]);
    try {
      check_pipeline_order(order);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::misuse);
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(accepted, 20);
}

}  // namespace
}  // namespace lockstep::parallel::pipeline_order_test
