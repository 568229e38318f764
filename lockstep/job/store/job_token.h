// The secret that the processes of one job share and nobody else has.
//
// Thread safety: a JobToken is a value; read_job_token() changes the environment, so call it before
// there are threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/job/store/secret.h"

namespace lockstep {

class LOCKSTEP_API JobToken {
 public:
  // Base64, either alphabet, of at least 128 bits: 22 characters. Errors: misuse for less, whose
  // message does not hold the text.
  explicit JobToken(std::string_view text);

  // Where it lies no core dump shows it; a copy elsewhere does.
  std::string_view text() const { return secret_.text(); }

 private:
  Secret secret_;
};

// 256 random bits.
LOCKSTEP_API JobToken make_job_token();

// From the file that LOCKSTEP_JOB_TOKEN_FILE names, else from LOCKSTEP_JOB_TOKEN; empty when
// neither is set. LOCKSTEP_JOB_TOKEN is wiped and unset, so that children and /proc do not show it:
// a second call finds nothing. Errors: misuse for both at once, for a file that is a symbolic link,
// is not this user's or may be read by others, and for a token that is too short.
LOCKSTEP_API std::optional<JobToken> read_job_token();

// The text of LOCKSTEP_JOB_TOKEN at the first call, which wipes and unsets it: for all groups of
// this process. Any text; empty when it was not set.
LOCKSTEP_API const std::optional<Secret>& secret_of_environment();

}  // namespace lockstep
