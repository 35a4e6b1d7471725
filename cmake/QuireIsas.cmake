# Which ISAs this architecture can have, slow to fast, and how src/kernels/isa/<isa>.cc is compiled.
# All objects share the baseline flags: the instructions come from Highway's target pragmas around our namespaces, so
# inline std:: code in these objects stays baseline (the test `symbols` checks it). Hence no -m flag anywhere.
if(QUIRE_FUZZ)
  set(QUIRE_ISAS scalar)  # what is fuzzed is what comes before the kernels
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(QUIRE_ISAS scalar avx2 avx512 avx512_bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(QUIRE_ISAS scalar neon neon_bf16)
else()
  set(QUIRE_ISAS scalar)
endif()

# Those of `isas` that this machine runs, from the flags that the kernel lists; none where it lists no flags.
function(quire_isas_here isas result)
  set(needs_avx2 avx2 fma bmi2 f16c)
  set(needs_avx512 ${needs_avx2} avx512f avx512bw avx512cd avx512dq avx512vl)
  set(needs_avx512_bf16 ${needs_avx512} avx512_bf16 avx512vbmi)
  set(needs_amx ${needs_avx512_bf16} amx_tile amx_bf16 amx_int8)
  set(needs_neon asimd)
  set(needs_neon_bf16 ${needs_neon} bf16)
  set(flags "")
  if(EXISTS /proc/cpuinfo AND NOT CMAKE_CROSSCOMPILING)
    file(STRINGS /proc/cpuinfo flags REGEX "^(flags|Features)" LIMIT_COUNT 1)
    string(REPLACE " " ";" flags "${flags}")
  endif()
  set(here "")
  if(flags)
    foreach(isa IN LISTS isas)
      set(missing ${needs_${isa}})
      list(REMOVE_ITEM missing ${flags})
      if(NOT missing)
        list(APPEND here ${isa})
      endif()
    endforeach()
  endif()
  set(${result} ${here} PARENT_SCOPE)
endfunction()

quire_isas_here("${QUIRE_ISAS}" quire_isas_here)

# For builds that need not have all of them (sanitizers, the demo): a list of names, in the same order.
set(QUIRE_ONLY_ISAS "" CACHE STRING "Build these ISAs only; native: scalar and the fastest that this machine runs")
if(QUIRE_ONLY_ISAS STREQUAL "native")
  if(quire_isas_here)
    list(GET quire_isas_here -1 quire_fastest_isa)
    set(QUIRE_ISAS scalar ${quire_fastest_isa})
    list(REMOVE_DUPLICATES QUIRE_ISAS)
  endif()
elseif(QUIRE_ONLY_ISAS)
  if(NOT scalar IN_LIST QUIRE_ONLY_ISAS)
    message(FATAL_ERROR "QUIRE_ONLY_ISAS: scalar is what runs where nothing else does; got ${QUIRE_ONLY_ISAS}")
  endif()
  foreach(isa IN LISTS QUIRE_ONLY_ISAS)
    if(NOT isa IN_LIST QUIRE_ISAS)
      message(FATAL_ERROR "QUIRE_ONLY_ISAS: this architecture has no ISA ${isa}; there are ${QUIRE_ISAS}")
    endif()
  endforeach()
  set(QUIRE_ISAS ${QUIRE_ONLY_ISAS})
endif()

# amx has only its products to itself: the rest it takes from avx512_bf16, which comes along.
if(amx IN_LIST QUIRE_ISAS AND NOT avx512_bf16 IN_LIST QUIRE_ISAS)
  list(FIND QUIRE_ISAS amx quire_amx_at)
  list(INSERT QUIRE_ISAS ${quire_amx_at} avx512_bf16)
endif()

# A file of its own in every build: tests replace its function (tests/support/amx_trap.h).
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/runtime/amx_usable.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Whose kernels are optimised: all, but in a quick build what this machine calls first. g++ takes 100 s for avx512_bf16
# with -O3, 64 with -O2, which is as fast (bench/forward_functions, Zen 4), 44 with -O1, 14 with -O0.
set(quire_optimised_isas ${QUIRE_ISAS})
if(QUIRE_QUICK AND quire_isas_here)
  list(GET quire_isas_here -1 quire_optimised_isas)
  if(quire_optimised_isas STREQUAL "amx")
    list(APPEND quire_optimised_isas avx512_bf16)
  endif()
endif()

function(quire_add_isa_sources target)
  set(isa_list "")
  foreach(isa IN LISTS QUIRE_ISAS)
    set(source ${PROJECT_SOURCE_DIR}/src/kernels/isa/${isa}.cc)
    target_sources(${target} PRIVATE ${source})
    # Kernels are noexcept; without this every object carries a weak reference to the unwinder.
    set(options -fno-exceptions -fno-rtti)
    # UndefinedBehaviorSanitizer's checks in thousands of unrolled register loops take minutes to compile per file;
    # AddressSanitizer, which watches what kernels read and write, stays.
    if(QUIRE_SANITIZE MATCHES "undefined")
      list(APPEND options -fno-sanitize=undefined)
    endif()
    if(QUIRE_QUICK)
      if(isa IN_LIST quire_optimised_isas)
        list(APPEND options -O2)
      elseif(isa IN_LIST quire_isas_here AND NOT QUIRE_ONLY_ISAS STREQUAL "native")
        list(APPEND options -O1)
      else()
        list(APPEND options -O0)  # never or hardly ever runs here: that it compiles is what counts
      endif()
    endif()
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}"
                                SKIP_UNITY_BUILD_INCLUSION ON)
    string(APPEND isa_list " X(${isa})")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/isa_list.h.in ${PROJECT_BINARY_DIR}/generated/isa_list.h @ONLY)
endfunction()
