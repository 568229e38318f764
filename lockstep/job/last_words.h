// Where an exception that ends this process is told to the other ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/job/job_page.h"

namespace lockstep {

// From now on record_exception() says this process's last words in `slot` of `page`, of which this
// process is. Stays so when its group has gone, since an exception that is caught has often ended
// the group first. The first call installs the terminate handler of record.h.
LOCKSTEP_API void send_last_words_to(std::shared_ptr<const JobPage> page, int slot);

}  // namespace lockstep
