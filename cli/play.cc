// `quire play -o FILE`: writes the playground, a page on which rules are typed and seen, as one
// file for any browser. Command line layer.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "commands.h"
#include "output_file.h"
#include "play_page.h"
#include "quire/error.h"

namespace quire::cli {

void add_play(CLI::App& app) {
  auto* command = app.add_subcommand(
      "play", "A page for a browser: type a rule, see its mask and how it is proved");
  const auto path = std::make_shared<std::string>();
  command->add_option("-o,--output", *path, "The HTML file to write; - is stdout")
      ->type_name("FILE")
      ->required();
  command->footer(
      "The page is one file, needs no server and asks for nothing from elsewhere. Example:\n"
      "  quire play -o play.html && xdg-open play.html");
  command->callback([path] {
    const std::string_view page = play_page();
    if (page.empty()) {
      throw Error(ErrorKind::not_implemented,
                  "[play] this program was built without the page, which takes emscripten: "
                  "`make play` builds both");
    }
    OutputFile file("play", *path);
    file.stream().write(page.data(), static_cast<std::streamsize>(page.size()));
    file.keep();
  });
}

}  // namespace quire::cli
