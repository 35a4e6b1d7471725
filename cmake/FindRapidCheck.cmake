# RapidCheck as the target `rapidcheck`. Headers and library are looked up directly, because not every package of it
# comes with a CMake config file.
find_path(RapidCheck_INCLUDE_DIR rapidcheck/gtest.h)
find_library(RapidCheck_LIBRARY rapidcheck)
mark_as_advanced(RapidCheck_INCLUDE_DIR RapidCheck_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RapidCheck REQUIRED_VARS RapidCheck_LIBRARY RapidCheck_INCLUDE_DIR)
if(RapidCheck_FOUND AND NOT TARGET rapidcheck)
  add_library(rapidcheck UNKNOWN IMPORTED)
  set_target_properties(rapidcheck PROPERTIES IMPORTED_LOCATION ${RapidCheck_LIBRARY})
  target_include_directories(rapidcheck SYSTEM INTERFACE ${RapidCheck_INCLUDE_DIR})
endif()
