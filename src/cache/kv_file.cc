// KVCache: saved sequences in files. Cache layer.
#include <cstdio>
#include <memory>
#include <system_error>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <unistd.h>
#endif

#include <atomic>
#include <string>

#include "cache/byte_stream.h"
#include "cache/kv_cache_state.h"
#include "cache/kv_save.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

using cache::ByteReader;

namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void fail_file(const char* where, const char* what,
                            const std::filesystem::path& path) {
  fail(ErrorKind::runtime, where, "{} {}: {}", what, path.string(),
       std::generic_category().message(errno));
}

// Data that is only in the system's memory may be lost when the machine stops.
bool is_on_disk(std::FILE* file) {
  if (std::fflush(file) != 0) return false;
#if defined(__unix__) || defined(__APPLE__)
  return fsync(fileno(file)) == 0;
#else
  return true;
#endif
}

// In the same folder, so that it can be renamed; unique among writers in this and other processes.
std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> last{0};
  std::filesystem::path name = path;
#if defined(__unix__) || defined(__APPLE__)
  name += "." + std::to_string(getpid());
#endif
  name += "." + std::to_string(last.fetch_add(1)) + ".tmp";
  return name;
}

// Writes a new file with write(sink) and renames it to `path` when it is complete.
template <class Write>
void replace_file(const char* where, const std::filesystem::path& path, const Write& write) {
  const std::filesystem::path temporary = temporary_name(path);
  File file(std::fopen(temporary.string().c_str(), "wbx"));
  if (file == nullptr) fail_file(where, "cannot write", temporary);
  try {
    const auto put = [&](std::span<const std::byte> bytes) {
      if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
        fail_file(where, "cannot write", temporary);
    };
    write(ByteSink(put));
    if (!is_on_disk(file.get())) fail_file(where, "cannot write", temporary);
    if (std::fclose(file.release()) != 0) fail_file(where, "cannot write", temporary);
    if (std::rename(temporary.string().c_str(), path.string().c_str()) != 0)
      fail_file(where, "cannot replace", path);
  } catch (...) {
    file.reset();
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

// Reads a file; can start again from its beginning.
class FileSource {
 public:
  FileSource(const char* where, const std::filesystem::path& path)
      : where_(where), path_(path), file_(std::fopen(path.string().c_str(), "rb")) {
    if (file_ == nullptr) fail_file(where, "cannot read", path);
  }
  std::size_t operator()(std::span<std::byte> to) {
    const std::size_t n = std::fread(to.data(), 1, to.size(), file_.get());
    if (n == 0 && std::ferror(file_.get()) != 0) fail_file(where_, "cannot read", path_);
    return n;
  }
  void rewind() {
    if (std::fseek(file_.get(), 0, SEEK_SET) != 0) fail_file(where_, "cannot read again", path_);
  }
  // Throws Error unless everything was read.
  void check_end() {
    if (std::fgetc(file_.get()) != EOF)
      fail(ErrorKind::value, where_, "more bytes follow in {}", path_.string());
  }

 private:
  const char* where_;
  const std::filesystem::path& path_;
  File file_;
};

}  // namespace

void KVCache::save_to(SequenceId sequence, const std::filesystem::path& file) const {
  replace_file("KVCache::save_to", file, [&](ByteSink sink) { save_to(sequence, sink); });
}

SequenceId KVCache::load_from(const std::filesystem::path& file, std::uint64_t salt) {
  FileSource source("KVCache::load_from", file);
  ByteReader check("KVCache::load_from", source);
  cache::check_saved(*state_, check);
  source.check_end();
  source.rewind();
  return load_from(ByteSource(source), salt);
}

void KVCache::save_all(const std::filesystem::path& file) const {
  replace_file("KVCache::save_all", file, [&](ByteSink sink) { save_all(sink); });
}

std::vector<LoadedSequence> KVCache::load_all(const std::filesystem::path& file) {
  FileSource source("KVCache::load_all", file);
  ByteReader check("KVCache::load_all", source);
  const cache::AllHeader header = cache::get_all_header(check);
  for (std::int64_t i = 0; i < header.sequences; ++i) {
    cache::get_all_entry(check);
    cache::check_saved(*state_, check);
  }
  source.check_end();
  source.rewind();
  return load_all(ByteSource(source));
}

}  // namespace quire
