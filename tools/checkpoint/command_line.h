// The function that tools/lockstep_checkpoint.cpp loads from this plugin.

// SPDX-License-Identifier: Apache-2.0
#pragma once

extern "C" [[gnu::visibility("default")]] int lockstep_checkpoint_command(int argc, char** argv);
