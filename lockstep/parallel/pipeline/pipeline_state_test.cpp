// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline_state.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/tensor/state.h"
#include "tests/fault_of.h"
#include "tests/rigs/pipeline_layers.h"

namespace lockstep::parallel::pipeline_state_test {
namespace {

// Otherwise other ranks would continue without the one that refuses.
TEST(PipelineState, AllRanksRefuseTheStateOfAnotherModelsOptimizer) {
  run_in_process(2, [](ProcessGroup& world) {
    Pipeline pipeline(test::small_layers::blocks(4), world);
    AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
    pipeline.step(test::small_layers::rows(8), [](const torch::Tensor& output, const Microbatch&) {
      return output.square().mean();
    });
    adamw.step();
    const std::unique_ptr<Stateful> state = state_of(adamw, pipeline);
    const StateDict saved = state->state_dict();
    EXPECT_NO_THROW(state->wanted(saved));
    for (const std::string layer : {"h.0", "h.3"}) {
      StateDict other = saved;
      const std::string name = layer + ".linear.weight.exp_avg";
      other.tensors.insert_or_assign(name, whole(torch::zeros({7, 7})));
      std::string text;
      EXPECT_EQ(test::fault_of([&] { state->wanted(other); }, &text), Fault::misuse);
      EXPECT_NE(text.find(name + " has shape [7, 7], here [6, 6]"), text.npos) << text;
    }
  });
}

}  // namespace
}  // namespace lockstep::parallel::pipeline_state_test
