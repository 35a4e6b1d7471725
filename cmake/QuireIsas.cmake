# Which ISAs this architecture can have, slow to fast, and how src/kernels/isa/<isa>.cc is compiled.
# All objects share the baseline flags: the instructions come from Highway's target pragmas around our namespaces, so
# inline std:: code in these objects stays baseline (the test `symbols` checks it). Hence no -m flag anywhere.
if(QUIRE_FUZZ)
  set(QUIRE_ISAS scalar)  # what is fuzzed is what comes before the kernels
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(QUIRE_ISAS scalar avx2 avx512 avx512_bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(QUIRE_ISAS scalar neon)
else()
  set(QUIRE_ISAS scalar)
endif()

# For builds that need not have all of them (sanitizers): a list of names, in the same order.
set(QUIRE_ONLY_ISAS "" CACHE STRING "Build these ISAs only")
if(QUIRE_ONLY_ISAS)
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
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}")
    string(APPEND isa_list " X(${isa})")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/isa_list.h.in ${PROJECT_BINARY_DIR}/generated/isa_list.h @ONLY)
endfunction()
