// All of lockstep/comm: communication between ranks, without LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/buffer.h"
#include "lockstep/comm/bytes.h"
#include "lockstep/comm/dtype.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/exit_code.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/message.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/record.h"
#include "lockstep/comm/registered_memory.h"
#include "lockstep/comm/store/file_store.h"
#include "lockstep/comm/store/in_process_store.h"
#include "lockstep/comm/store/job_member.h"
#include "lockstep/comm/store/job_token.h"
#include "lockstep/comm/store/prefix_store.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/store/tcp_store.h"
#include "lockstep/comm/store/tcp_store_server.h"
#include "lockstep/comm/time.h"
#include "lockstep/comm/values.h"
#include "lockstep/comm/work.h"
