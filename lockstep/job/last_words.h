// Sets where the exception that ends this process is reported to the other ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/job/job_page.h"

namespace lockstep {

// From now on record_exception() writes this process's last words to `slot` of `page`, which this
// process holds. This stays so after its group is gone: an exception has often ended the group
// before it is caught. The first call installs the terminate handler of record.h.
LOCKSTEP_API void send_last_words_to(std::shared_ptr<const JobPage> page, int slot);

}  // namespace lockstep
