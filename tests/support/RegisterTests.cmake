# Read by ctest each time it starts: registers the test executables once per ISA that this machine has. Asked at test
# time and of the library itself, so a build directory copied to another machine, or a CPU that loses a feature (a
# virtual machine that moved), never runs instructions that are not there, and no list of ISAs is kept twice.
# The programs of a cross-compiled build run under its emulator (quire_emulator, empty elsewhere).
execute_process(COMMAND ${quire_emulator} ${list_isas} OUTPUT_VARIABLE quire_isas RESULT_VARIABLE quire_status
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(quire_status)
  # Not built yet, or broken: one test that says so instead of a run that seems to pass with nothing in it.
  add_test(tests_not_built ${quire_emulator} "${list_isas}")
endif()
string(REPLACE "\n" ";" quire_isas "${quire_isas}")

# Slow emulators: QUIRE_TEST_SHARDS=8 in the environment runs the tests of each program in 8 parts, `kernels.neon/3`, which ctest
# spreads over the cores; QUIRE_TEST_RESULTS=<folder> has each of them leave a report of GoogleTest's there.
set(quire_shards 1)
if(DEFINED ENV{QUIRE_TEST_SHARDS})
  set(quire_shards $ENV{QUIRE_TEST_SHARDS})
endif()

# quire_add_run(<name> <executable> <labels> <environment> <timeout>)
function(quire_add_run name file labels environment timeout)
  foreach(shard RANGE 1 ${quire_shards})
    set(part ${name})
    set(settings ${environment})
    if(quire_shards GREATER 1)
      set(part ${name}/${shard})
      math(EXPR index "${shard} - 1")
      list(APPEND settings GTEST_TOTAL_SHARDS=${quire_shards} GTEST_SHARD_INDEX=${index})
    endif()
    if(DEFINED ENV{QUIRE_TEST_RESULTS})
      string(REPLACE "/" "-" report "${part}")
      list(APPEND settings "GTEST_OUTPUT=json:$ENV{QUIRE_TEST_RESULTS}/${report}.json")
    endif()
    add_test(${part} ${quire_emulator} "${file}")
    set_tests_properties(${part} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${settings}")
  endforeach()
endfunction()

# quire_register(<executable's name> <its file> <label> <once|per_isa>)
# formula_test becomes formula.<isa>; formula_property becomes formula_property.<isa>. What is labelled memory is a test, too;
# tests are `fast` on the fastest ISA of this machine, all of them together in less than a minute.
function(quire_register name file label how)
  if(NOT quire_isas)
    return()
  endif()
  string(REGEX REPLACE "_test$" "" test "${name}")
  if(label STREQUAL "memory")
    set(label "test;memory")
  endif()
  set(timeout 1800)  # the longest takes 7 minutes, under ThreadSanitizer
  if(DEFINED ENV{QUIRE_PROPERTY_RUNS} OR DEFINED ENV{QUIRE_MATH_STEP})
    set(timeout 14400)
  endif()
  if(how STREQUAL "once")
    if("test" IN_LIST label)
      list(APPEND label fast)
    endif()
    quire_add_run(${test} "${file}" "${label}" "" ${timeout})
    return()
  endif()
  list(GET quire_isas -1 fastest)
  set(runs 2000)
  if(DEFINED ENV{QUIRE_PROPERTY_RUNS})
    set(runs $ENV{QUIRE_PROPERTY_RUNS})
  endif()
  math(EXPR fewer "(${runs} + 4) / 5")
  foreach(isa IN LISTS quire_isas)
    set(environment "QUIRE_ISA=${isa}")
    # Random cases find mistakes of logic on any ISA; the slow ones get a fifth.
    if(label STREQUAL "property" AND NOT isa STREQUAL fastest)
      list(APPEND environment "QUIRE_PROPERTY_RUNS=${fewer}")
    endif()
    set(labels "${label}")
    if("test" IN_LIST label AND isa STREQUAL fastest)
      list(APPEND labels fast)
    endif()
    quire_add_run(${test}.${isa} "${file}" "${labels}" "${environment}" ${timeout})
  endforeach()
endfunction()
