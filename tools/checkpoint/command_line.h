// The function that tools/lockstep_checkpoint.cpp loads from the plugin of `lockstep checkpoint`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the command line; returns the exit code.
extern "C" [[gnu::visibility("default")]] int lockstep_checkpoint_command(int argc, char** argv);
