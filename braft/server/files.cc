#include "files.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace raftrig {

bool WriteFile(const std::string& path, const std::string& content, bool sync) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const char* next = content.data();
  size_t left = content.size();
  bool ok = true;
  while (ok && left > 0) {
    const ssize_t n = write(fd, next, left);
    if (n < 0 && errno == EINTR) continue;
    ok = n >= 0;
    if (ok) {
      next += n;
      left -= static_cast<size_t>(n);
    }
  }
  ok = ok && (!sync || fsync(fd) == 0);
  const int why = errno;
  if (close(fd) != 0 && ok) return false;
  errno = why;
  return ok;
}

}  // namespace raftrig
