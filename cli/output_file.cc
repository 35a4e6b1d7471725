// Writes files under temporary names, and removes these when the program is told to stop. Command
// line layer.
#include "output_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "quire/error.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Names for the signal handler, which may read only atomics.
std::array<std::atomic<const char*>, 8> g_temporaries{};

void remove_and_end(int signal) {
  for (const std::atomic<const char*>& name : g_temporaries)
    if (const char* path = name.load()) unlink(path);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// While it lives, signals that end a program wait: no temporary file is there that the handler does
// not know.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int signal : kEndingSignals) sigaddset(&ending, signal);
    pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

// Unless they are ignored (nohup).
void watch_signals() {
  for (const int signal : kEndingSignals) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
      std::signal(signal, remove_and_end);
  }
}

std::size_t remember(const char* path) {
  for (std::size_t i = 0; i < g_temporaries.size(); ++i) {
    const char* none = nullptr;
    if (g_temporaries[i].compare_exchange_strong(none, path)) return i;
  }
  return g_temporaries.size();
}

void forget(std::size_t slot) {
  if (slot < g_temporaries.size()) g_temporaries[slot].store(nullptr);
}

// The permissions of the file to be replaced, or those of a new file.
mode_t mode_of(const std::string& path) {
  struct stat old {};
  if (stat(path.c_str(), &old) == 0) return old.st_mode & 07777;
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

OutputFile::OutputFile(const char* where, const std::string& path)
    : where_(where), path_(path), target_(path) {
  if (path == "-") return;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status)) target_ = fs::canonical(path, error).string();
  const bool is_link_to_nothing = !fs::exists(status) && fs::is_symlink(path, error);
  if (fs::is_directory(status)) refuse(EISDIR);
  if ((fs::is_regular_file(status) && access(path.c_str(), W_OK) == 0) ||
      (!fs::exists(status) && !is_link_to_nothing))
    open_beside();
  if (!temporary_.empty()) return;
  errno = 0;
  file_.open(path, std::ios::binary);
  if (!file_.is_open()) refuse(errno);
}

void OutputFile::open_beside() {
  const SignalsWait wait;
  std::string name = target_ + ".XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) return;  // no new file in this folder; the old one may be writable
  temporary_ = name;
  slot_ = remember(temporary_.c_str());
  watch_signals();
  (void)fchmod(file, mode_of(target_));
  close(file);
  file_.open(temporary_, std::ios::binary);
  if (!file_.is_open()) refuse(errno);
}

OutputFile::~OutputFile() {
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  forget(slot_);
}

std::ostream& OutputFile::stream() { return path_ == "-" ? std::cout : file_; }

void OutputFile::keep() {
  errno = 0;
  if (path_ == "-") {
    if (!std::cout.flush())
      throw Error(ErrorKind::runtime, fmt::format("[{}] cannot write to stdout", where_));
    return;
  }
  file_.close();
  if (!file_) refuse(errno);
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(errno);
  forget(slot_);
  temporary_.clear();
}

void OutputFile::refuse(int error) const {
  throw Error(ErrorKind::runtime,
              fmt::format("[{}] cannot write '{}'{}{}", where_, path_, error == 0 ? "" : ": ",
                          error == 0 ? "" : std::generic_category().message(error)));
}

void check_different(const std::string& option, const std::vector<std::string>& paths) {
  const auto place = [](const std::string& path) {
    std::error_code error;
    fs::path at = fs::absolute(path, error);
    // Links are followed by hand: canonical() fails for a file that does not exist yet.
    for (int i = 0; i < 40 && fs::is_symlink(at, error); ++i)
      at = at.parent_path() / fs::read_symlink(at, error);
    const fs::path found = fs::weakly_canonical(at, error);
    return path == "-" || error ? fs::path(path) : found;
  };
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (paths[i].empty() || paths[j].empty() || place(paths[i]) != place(paths[j])) continue;
      throw CLI::ValidationError(option, fmt::format("two results cannot both be '{}'", paths[i]));
    }
  }
}

}  // namespace quire::cli
