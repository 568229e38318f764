// All public headers for communication between ranks. Needs no LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/barrier.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "lockstep/comm/work.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/record.h"
#include "lockstep/job/step_times.h"
#include "lockstep/job/store/store.h"
#include "lockstep/job/store/tcp_store.h"
