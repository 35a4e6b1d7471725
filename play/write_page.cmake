# Writes style, code and the compiled module into the page, so that it is one file without links to others.
foreach(part PAGE STYLE CODE MODULE)
  file(READ ${${part}} text_${part})
endforeach()
string(REPLACE "/*STYLE*/" "${text_STYLE}" text_PAGE "${text_PAGE}")
string(REPLACE "/*MODULE*/" "${text_MODULE}" text_PAGE "${text_PAGE}")
string(REPLACE "/*CODE*/" "${text_CODE}" text_PAGE "${text_PAGE}")
file(WRITE ${OUTPUT} "${text_PAGE}")
