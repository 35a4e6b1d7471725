# Highway's headers as the target `hwy_headers`. Nothing of libhwy is linked: dispatch is our own.
find_path(HwyHeaders_INCLUDE_DIR hwy/highway.h)
mark_as_advanced(HwyHeaders_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(HwyHeaders REQUIRED_VARS HwyHeaders_INCLUDE_DIR)
if(HwyHeaders_FOUND AND NOT TARGET hwy_headers)
  add_library(hwy_headers INTERFACE)
  target_include_directories(hwy_headers SYSTEM INTERFACE ${HwyHeaders_INCLUDE_DIR})
endif()
