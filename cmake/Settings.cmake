# Settings for every target of the project.

if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 20)
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME comm)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON CACHE BOOL
      "Installed libraries are found where they were at build time, too")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache stores paths relative to the source folder, so that clones share one cache. For
  # precompiled headers, it must ignore macros that they may have defined.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
                                  ${CCACHE_PROGRAM})
endif()

add_library(lockstep_settings INTERFACE)
target_compile_options(lockstep_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                   -Wno-sign-conversion)
if(LOCKSTEP_WARNINGS_AS_ERRORS)
  target_compile_options(lockstep_settings INTERFACE -Werror)
endif()
# Results have the same bits on all processors: products and sums are rounded separately. x86-64 has
# an instruction for both only with further options.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(lockstep_settings INTERFACE -ffp-contract=off)
endif()
# GCC treats the sources in a unit as headers and warns that their classes differ between units.
if(LOCKSTEP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(lockstep_settings INTERFACE -Wno-subobject-linkage)
endif()
# Clang 19 reports a deprecated function that std::stable_sort() of libstdc++ 12 calls. GCC reports
# the project's own calls of deprecated functions.
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -Werror=deprecated-declarations)
  check_cxx_source_compiles("
    #include <algorithm>
    int main(int, char** arguments) { std::stable_sort(arguments, arguments + 1); }"
    LOCKSTEP_STABLE_SORT_IS_QUIET)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT LOCKSTEP_STABLE_SORT_IS_QUIET)
    target_compile_options(lockstep_settings INTERFACE -Wno-deprecated-declarations)
  endif()
endif()
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
# GCC's ThreadSanitizer does not support fences, which LibTorch's headers have. ShmBackend has one
# for reads by the kernel, which ThreadSanitizer does not see.
if(LOCKSTEP_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-tsan)
endif()
if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "LOCKSTEP_FUZZ needs clang: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
