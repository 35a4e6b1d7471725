# Flags that every object of this project shares, set in one place: warnings, sanitizers, ccache, floating point.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the Python module links the static library

# Asserts stay on in the sanitizer and coverage builds (RelWithDebInfo); only Release defines NDEBUG.
# QUIRE_QUICK saves a third of the library's build time; QuireIsas.cmake gives the kernels that run here -O2.
if(QUIRE_QUICK)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Colours survive Ninja's pipe.
set(CMAKE_COLOR_DIAGNOSTICS ON)

# quire_compile_options(target [SHADOW]). SHADOW: warn of names that hide others, in what is shipped; tests may.
function(quire_compile_options target)
  set(warnings -Wall -Wextra -Wpedantic)
  if("SHADOW" IN_LIST ARGN)
    list(APPEND warnings -Wshadow)
  endif()
  # -ffp-contract=off: g++ would fuse a * b + c where the ISA has FMA, and the bits would depend on the ISA.
  target_compile_options(${target} PRIVATE -ffp-contract=off ${warnings})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 warns about "text" + std::string inside <string> itself (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(QUIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(QUIRE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${QUIRE_SANITIZE})
  endif()
  if(QUIRE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(QUIRE_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage)
    target_link_options(${target} PUBLIC --coverage)
  endif()
endfunction()

# For targets of many small files, most of whose time goes into reading headers.
function(quire_compile_in_batches target)
  if(QUIRE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
    # A batch includes its files, and g++ takes what is included for a header.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()
