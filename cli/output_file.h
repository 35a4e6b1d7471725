// OutputFile: a result on its way to a file. What is written goes to a file of another name beside
// it, which takes its place when all is there: whoever stops the program finds the old file, or
// none, and no half of a new one. Command line layer.
#pragma once
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

namespace quire::cli {

class OutputFile {
 public:
  /// "-" is stdout. A pipe or a device is written to directly, and so is a file in a folder that
  /// takes no other. `where` begins the texts of errors. Throws Error if it cannot be opened.
  OutputFile(const char* where, const std::string& path);
  ~OutputFile();  // without keep(): nothing has happened
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream();
  /// Everything is written. Throws Error, with the system's reason, if it could not be.
  void keep();

 private:
  void open_beside();
  [[noreturn]] void refuse(int error) const;

  const char* where_;
  std::string path_;
  std::string target_;     // path_ with links resolved
  std::string temporary_;  // empty: written to directly
  std::ofstream file_;
  std::size_t slot_ = 0;  // of temporary_ among those to remove at a signal
};

/// Throws CLI::ValidationError for `option` if two of the paths (empty ones do not count) are the
/// same file, under whatever names.
void check_different(const std::string& option, const std::vector<std::string>& paths);

}  // namespace quire::cli
