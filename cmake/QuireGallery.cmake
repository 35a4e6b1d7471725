# The gallery of mods is one text file. It is put into the library as a string, and again whenever it changes.
function(quire_add_gallery target)
  set(text_file ${PROJECT_SOURCE_DIR}/src/mods/gallery.txt)
  set(source ${PROJECT_BINARY_DIR}/generated/gallery_text.cc)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${text_file})
  file(READ ${text_file} gallery_text)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/gallery_text.cc.in ${source} @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()
