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
    add_test(${test} ${quire_emulator} "${file}")
    if("test" IN_LIST label)
      list(APPEND label fast)
    endif()
    set_tests_properties(${test} PROPERTIES LABELS "${label}" TIMEOUT ${timeout})
    return()
  endif()
  list(GET quire_isas -1 fastest)
  set(runs 2000)
  if(DEFINED ENV{QUIRE_PROPERTY_RUNS})
    set(runs $ENV{QUIRE_PROPERTY_RUNS})
  endif()
  math(EXPR fewer "(${runs} + 4) / 5")
  foreach(isa IN LISTS quire_isas)
    add_test(${test}.${isa} ${quire_emulator} "${file}")
    set(environment "QUIRE_ISA=${isa}")
    # Random cases find mistakes of logic on any ISA; the slow ones get a fifth.
    if(label STREQUAL "property" AND NOT isa STREQUAL fastest)
      list(APPEND environment "QUIRE_PROPERTY_RUNS=${fewer}")
    endif()
    set(labels "${label}")
    if("test" IN_LIST label AND isa STREQUAL fastest)
      list(APPEND labels fast)
    endif()
    set_tests_properties(${test}.${isa} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  endforeach()
endfunction()
