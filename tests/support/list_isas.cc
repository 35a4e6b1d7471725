// Prints the ISAs that this build holds and this CPU has, one per line. Asked by ctest
// (RegisterTests.cmake).
#include <cstdio>

#include "quire/isa.h"

int main() {
  for (const quire::Isa isa : quire::available_isas()) std::printf("%s\n", quire::isa_name(isa));
}
