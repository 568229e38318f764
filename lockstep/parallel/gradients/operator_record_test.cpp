// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/operator_record.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <type_traits>

#include "lockstep/base/temporary_folder.h"

namespace lockstep::parallel::operator_record_test {
namespace {

static_assert(std::is_nothrow_destructible_v<OperatorRecord>);

TEST(OperatorRecord, LetsAProcessExitAtOnce) {
  for (int process = 0; process < 20; ++process) {
    EXPECT_EXIT(
        {
          { const OperatorRecord record; }
          std::exit(0);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST(OperatorRecord, HasTheOperatorsOfItsTimeAlsoAfterOneThatWasNotSaved) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "operators.json";
  const torch::Tensor values = torch::ones(16);
  {
    const OperatorRecord dropped;
    values.sin();
  }
  values.cos();
  OperatorRecord record;
  values.tanh();
  record.save(file);
  values.exp();
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("aten::tanh"), text.npos) << text;
  for (const char* other : {"aten::sin", "aten::cos", "aten::exp"})
    EXPECT_EQ(text.find(other), text.npos) << other;
}

}  // namespace
}  // namespace lockstep::parallel::operator_record_test
