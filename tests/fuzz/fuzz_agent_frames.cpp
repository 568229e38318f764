// F6: the frames between launchers, with arbitrary input. Only an Error may be thrown. Text for
// users must not contain control sequences. A frame that was parsed must be equal after it is
// written and read again.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/agent_frames.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

using namespace launch;

JoinFrame join(const std::optional<JobCommand>& command) {
  JoinFrame frame;
  frame.node = {.host = "node1", .nproc = 8, .node_rank = 1, .least = 2, .most = 4};
  frame.command = command;
  return frame;
}

void expect_clean(const std::string& text) { expect(clean_text(text, 1024) == text); }

// Texts of a frame that are shown unchanged.
struct ExpectClean {
  void operator()(const AliveFrame&) const {}
  void operator()(const AllGoneFrame&) const {}
  void operator()(const ReportFrame& frame) const { check(frame.failure); }
  void operator()(const JoinFrame& frame) const {
    expect_clean(frame.node.host);
    if (!frame.command) return;
    expect_clean(frame.command->program);
    expect(frame.command->arguments.size() <= JobCommand::most_arguments);
    for (const std::string& argument : frame.command->arguments)
      expect(clean_text(argument, JobCommand::longest_argument) == argument);
  }
  void operator()(const StateFrame& frame) const {
    expect_clean(frame.coordinator);
    expect_clean(frame.text);
  }
  void operator()(const StartRanks& frame) const { expect_clean(frame.round.job_id); }
  void operator()(const EndRanks& frame) const {
    expect_clean(frame.why);
    check(frame.failure);
  }
  void operator()(const EndJob& frame) const {
    expect_clean(frame.why);
    check(frame.failure);
  }

  static void check(const std::optional<Failure>& failure) {
    if (!failure) return;
    for (const std::string& text :
         {failure->host, failure->operation, failure->group, failure->what})
      expect_clean(text);
  }
};

}  // namespace

std::vector<std::string> seeds() {
  const Failure failure{.rank = 3,
                        .host = "node1",
                        .pid = 42,
                        .signal = 9,
                        .oom = false,
                        .operation = "all_reduce",
                        .sequence = 812,
                        .what = "bad \xff text"};
  return {encode(AliveFrame{}),
          encode(join(std::nullopt)),
          encode(join(JobCommand{.program = "train",
                                 .arguments = {"--seed", "1", "\xC3\xB6"},
                                 .digest = "0123456789abcdef"})),
          encode(ReportFrame{0, Outcome::failed, 137, failure}),
          encode(AllGoneFrame{1}),
          encode(StateFrame{"node0", "host 1 of 2"}),
          encode(StartRanks{{.nodes = 2,
                             .world_size = 16,
                             .job_id = "job",
                             .master_addr = "10.0.0.1",
                             .master_port = 29500,
                             .store = "10.0.0.1:29501"}}),
          encode(EndRanks{"host node1 was lost"}),
          encode(EndJob{137, "rank 3 was killed", failure})};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace launch;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto body = first_agent_frame(bytes);
    if (!body) return 0;
    const AgentFrame frame = decode_agent_frame(*body);
    std::visit(fuzz::ExpectClean(), frame);
    const std::string again = encode(frame);
    fuzz::expect(encode(decode_agent_frame(*first_agent_frame(again))) == again);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt);
  }
  return 0;
}
