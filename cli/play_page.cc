// The page as bytes of this program, included by the assembler: as an array of numbers it would
// take the compiler minutes. Command line layer.
#include "play_page.h"

asm(".section .rodata\n"
    "quire_play_page_begin:\n"
    ".incbin \"" QUIRE_PLAY_PAGE
    "\"\n"
    "quire_play_page_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char quire_play_page_begin[], quire_play_page_end[];

namespace quire::cli {

std::string_view play_page() {
  return {quire_play_page_begin,
          static_cast<std::size_t>(quire_play_page_end - quire_play_page_begin)};
}

}  // namespace quire::cli
