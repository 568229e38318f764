# Functions that declare a library, a component of it, and a test.

# Declares a shared library with hidden visibility whose CMake name is Lockstep::<name without
# lockstep_>. The target <target>_objects has its object files, for tests of hidden code.
function(lockstep_library target)
  string(REGEX REPLACE "^lockstep_" "" name ${target})
  add_library(${target}_objects OBJECT)
  add_library(${target} SHARED $<TARGET_OBJECTS:${target}_objects>)
  add_library(Lockstep::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  foreach(part ${target} ${target}_objects)
    target_compile_features(${part} PUBLIC cxx_std_20)
    target_include_directories(${part} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  lockstep_link(${target} PRIVATE $<BUILD_INTERFACE:lockstep_settings>)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES ${target})
endfunction()

# target_link_libraries() for one of our libraries and its objects.
function(lockstep_link target)
  target_link_libraries(${target} ${ARGN})
  target_link_libraries(${target}_objects ${ARGN})
endfunction()

# lockstep_united(<result> <name> [OPTIONS_OF <folder>] <cpp>...) With LOCKSTEP_UNITY, sets <result>
# to sources <name>_<number>.cpp. Each includes up to ten of the given sources, so that headers are
# read once. Otherwise sets <result> to the given sources. Sources with compile options stay
# separate. So do those outside of the calling folder, which may replace operator new for tests and
# must not be inlined into others. CMake's UNITY_BUILD includes absolute paths, which defeat ccache
# in another checkout. A source's options apply only if they are set in the target's folder: the
# calling folder unless OPTIONS_OF names it.
function(lockstep_united result name)
  cmake_parse_arguments(united "" "OPTIONS_OF" "" ${ARGN})
  set(ARGN ${united_UNPARSED_ARGUMENTS})
  if(NOT united_OPTIONS_OF)
    set(united_OPTIONS_OF ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  if(NOT LOCKSTEP_UNITY)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(units "")
  set(others "")
  foreach(source IN LISTS ARGN)
    get_source_file_property(options ${source} DIRECTORY ${united_OPTIONS_OF} COMPILE_OPTIONS)
    if(options OR source MATCHES "^(/|\\.\\./)")
      list(APPEND units ${source})
    else()
      list(APPEND others ${source})
    endif()
  endforeach()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_BINARY_DIR BASE_DIRECTORY ${PROJECT_BINARY_DIR}
             OUTPUT_VARIABLE folder)
  cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY ${CMAKE_BINARY_DIR} NORMALIZE)
  set(number 0)
  while(others)
    list(SUBLIST others 0 10 batch)
    list(REMOVE_ITEM others ${batch})
    set(includes "")
    foreach(source IN LISTS batch)
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(APPEND includes "#include \"${source}\"\n")
    endforeach()
    set(unit ${folder}/${name}_${number}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}")
    list(APPEND units ${unit})
    math(EXPR number "${number} + 1")
  endwhile()
  set(${result} ${units} PARENT_SCOPE)
endfunction()

# GCC 12 wrongly reports members of inlined code in a large unit as uninitialised, except with
# LibTorch's headers.
function(lockstep_trust_united target)
  if(LOCKSTEP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
     NOT target MATCHES "^lockstep(_toolkit)?_objects$")
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
endfunction()

# lockstep_component(<library> [HEADERS h...] [OFFERS h...] [SOURCES cpp...] [TESTS cpp...]) Adds
# the files of the calling folder. HEADERS are installed, OFFERS are for other components; further
# headers are private (tests/tidy.py). TESTS become the GoogleTest program <component>_test.
function(lockstep_component library)
  cmake_parse_arguments(component "" "" "HEADERS;OFFERS;SOURCES;TESTS" ${ARGN})
  list(TRANSFORM component_HEADERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  get_filename_component(name ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  get_target_property(folder ${library}_objects SOURCE_DIR)
  lockstep_united(component_SOURCES ${name} OPTIONS_OF ${folder} ${component_SOURCES})
  target_sources(${library}_objects PRIVATE ${component_SOURCES})
  lockstep_trust_united(${library}_objects)
  target_sources(${library} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                   FILES ${component_HEADERS})
  if(component_TESTS AND LOCKSTEP_BUILD_TESTS)
    lockstep_test(${name}_test ${library} ${component_TESTS})
  endif()
endfunction()

# Programs for ./dev test --fast and ./dev check: together they take a minute on two cores.
set(lockstep_fast_tests base_test job_test store_test launch_test tensor_test nn_test optim_test)

# Programs that measure this process's share of memory, which other processes affect.
set(lockstep_lone_tests observe_test)

# lockstep_test(<program> <library> <cpp>...): adds a GoogleTest program whose suites are ctests.
# tests/ranks_main.cpp provides main(), because the program may start itself as ranks
# (tests/ranks.h). It contains the objects of lockstep_comm and searches for engines beside it.
function(lockstep_test program library)
  lockstep_united(sources ${program} ${ARGN})
  if(NOT TARGET lockstep_test_ranks)
    add_library(lockstep_test_ranks OBJECT ${PROJECT_SOURCE_DIR}/tests/ranks.cpp
                                           ${PROJECT_SOURCE_DIR}/tests/ranks_main.cpp)
    target_include_directories(lockstep_test_ranks PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(lockstep_test_ranks PRIVATE GTest::gtest lockstep_settings)
  endif()
  add_executable(${program} ${sources} $<TARGET_OBJECTS:lockstep_test_ranks>)
  target_link_libraries(${program} PRIVATE ${library}_objects GTest::gtest lockstep_settings)
  # -O1 saves compile time. The library keeps its own flags.
  target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(library STREQUAL lockstep OR library STREQUAL lockstep_toolkit)
    if(NOT TARGET lockstep_test_vector_math)
      add_library(lockstep_test_vector_math OBJECT
                  ${PROJECT_SOURCE_DIR}/tests/settled_vector_math.cpp)
      target_include_directories(lockstep_test_vector_math PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_libraries(lockstep_test_vector_math PRIVATE GTest::gtest lockstep_settings)
    endif()
    target_sources(${program} PRIVATE $<TARGET_OBJECTS:lockstep_test_vector_math>)
  else()
    lockstep_trust_united(${program})
  endif()
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set(properties TIMEOUT 600
                 ENVIRONMENT "[=[LOCKSTEP_ENGINE_PATH=${CMAKE_LIBRARY_OUTPUT_DIRECTORY}]=]")
  if(program IN_LIST lockstep_fast_tests)
    list(APPEND properties LABELS fast)
  endif()
  if(program IN_LIST lockstep_lone_tests)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  string(JOIN " " properties ${properties})
  if(CMAKE_CROSSCOMPILING)
    return() # This machine cannot list the suites. tests/platforms runs the program elsewhere.
  endif()
  set(suites ${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.cmake)
  string(REGEX REPLACE "_test$" "" name ${program})
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS ${suites} VERBATIM
    COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${program}> -D NAME=${name}
            -D OUTPUT=${suites} -D "PROPERTIES=${properties}"
            -P ${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake)
  # Until the program is built, a test fails in its place.
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${program}_tests.cmake)
  file(CONFIGURE OUTPUT ${include} @ONLY CONTENT [[
if(EXISTS "@suites@")
  include("@suites@")
else()
  add_test(@program@_NOT_BUILT @program@_NOT_BUILT)
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()

# lockstep_former_header(<path> <header>): until version 0.2, <path> includes <header>, which has
# moved. Both are below lockstep/.
function(lockstep_former_header path header)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/former_headers/lockstep/${path}
       CONTENT "// Deprecated path.\n#pragma once\n\n#include \"lockstep/${header}\"\n")
endfunction()

# Compiles LibTorch's most used headers once for all targets below `folder` that link LibTorch, are
# of one type and have the same options. It saves a third of a unit's time. A source with other
# options reads the headers again.
function(lockstep_precompile_torch folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(libraries ${target} LINK_LIBRARIES)
    if(NOT type MATCHES "EXECUTABLE|OBJECT_LIBRARY|MODULE_LIBRARY" OR
       NOT libraries MATCHES
           "(^|;)(Lockstep::torch|(Lockstep::|lockstep_)?(lockstep|toolkit)(_objects)?)(;|$)")
      continue()
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -fpch-preprocess)  # For ccache.
    endif()
    get_target_property(options ${target} COMPILE_OPTIONS)
    list(FILTER options EXCLUDE REGEX "^-W")
    list(FILTER libraries INCLUDE REGEX "^GTest::")  # With a macro of its own.
    string(REPLACE "MODULE" "OBJECT" kind "${type} ${options} ${libraries}")
    string(MD5 kind "${kind}")
    get_property(first GLOBAL PROPERTY LOCKSTEP_PRECOMPILED_${kind})
    if(first)
      target_precompile_headers(${target} REUSE_FROM ${first})
      continue()
    endif()
    set_property(GLOBAL PROPERTY LOCKSTEP_PRECOMPILED_${kind} ${target})
    target_precompile_headers(${target} PRIVATE
      <ATen/core/Tensor.h> <ATen/ops/empty.h> <ATen/ops/zeros.h> <torch/nn/module.h>
      <torch/nn/modules/container/sequential.h> <torch/nn/modules/linear.h>
      <torch/optim/optimizer.h> <torch/optim/sgd.h> <torch/types.h>)
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(each IN LISTS folders)
    lockstep_precompile_torch(${each})
  endforeach()
endfunction()
