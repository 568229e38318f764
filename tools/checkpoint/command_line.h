// The function that tools/lockstep_checkpoint.cpp looks for in the plugin of `lockstep checkpoint`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

// Does what the command line says; returns the exit code.
extern "C" [[gnu::visibility("default")]] int lockstep_checkpoint_command(int argc, char** argv);
