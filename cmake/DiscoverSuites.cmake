# Lists the suites of a GoogleTest program as ctests. Usage:
#   cmake -D PROGRAM=<file> -D NAME=<name> -D OUTPUT=<file> -D PROPERTIES=<words> -P <this file>.
# A suite is one process, because a start takes longer than most tests.

execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE output RESULT_VARIABLE result
                ERROR_VARIABLE output TIMEOUT 60)
if(NOT result EQUAL 0)
  file(REMOVE ${PROGRAM})  # So that the next build tries again.
  message(FATAL_ERROR "${PROGRAM} cannot list its tests (${result}):\n${output}")
endif()

# Suites have lines such as "Ranks/Barrier.  # TypeParam = int"; tests are indented.
string(REGEX MATCHALL "(^|\n)[^ \n#]+\\." suites "${output}")
set(tests "")
foreach(suite IN LISTS suites)
  string(STRIP "${suite}" suite)
  string(REGEX REPLACE "\\.$" "" suite "${suite}")
  if(suite MATCHES "(^|/)DISABLED_")
    continue()
  endif()
  string(APPEND tests
         "add_test([=[${NAME}.${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=])\n"
         "set_tests_properties([=[${NAME}.${suite}]=] PROPERTIES ${PROPERTIES})\n")
endforeach()
file(WRITE ${OUTPUT} "${tests}")
