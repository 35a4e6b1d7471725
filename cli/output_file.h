// OutputFile: a result being written to a file. It is written under another name in the same folder
// and renamed when complete: if the program is stopped, the old file (or none) is there, never half
// of a new one. Command line layer.
#pragma once
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

namespace quire::cli {

class OutputFile {
 public:
  /// "-" is stdout. A pipe or a device is written to directly, and so is a file in a folder that
  /// takes no new ones. `where` begins error texts. Throws Error if it cannot be opened.
  OutputFile(const char* where, const std::string& path);
  ~OutputFile();  // without keep(), nothing has changed
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream();
  /// Completes the file. Throws Error, with the system's reason, if anything could not be written.
  void keep();

 private:
  void open_beside();
  [[noreturn]] void refuse(int error) const;

  const char* where_;
  std::string path_;
  std::string target_;     // path_ with links resolved
  std::string temporary_;  // empty: written to directly
  std::ofstream file_;
  std::size_t slot_ = 0;  // of temporary_ in the list of files to remove at a signal
};

/// Throws CLI::ValidationError for `option` if two of the paths (ignoring empty ones) are the same
/// file, under any name.
void check_different(const std::string& option, const std::vector<std::string>& paths);

}  // namespace quire::cli
