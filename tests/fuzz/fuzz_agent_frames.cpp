// F6: the frames between launchers, against whatever one sends. Nothing but an Error comes out, and
// what is understood is understood in the same way when it is said again.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/error.h"
#include "lockstep/launch/agent_frames.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

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
          encode(JoinFrame{{.host = "node1", .nproc = 8, .node_rank = 1, .least = 2, .most = 4}}),
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
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto body = first_agent_frame(bytes);
    if (!body) return 0;
    const std::string again = encode(decode_agent_frame(*body));
    fuzz::expect(encode(decode_agent_frame(*first_agent_frame(again))) == again);
  } catch (const Error& error) {
    fuzz::expect(error.fault() == Fault::corrupt);
  }
  return 0;
}
