/* Lets the k-th call of one kind fail with an errno, in place of `strace -e inject`: LD_PRELOAD, armed through quiver_fault_arm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { PWRITEV, PWRITEV2, PWRITE64, FDATASYNC, FSYNC, FALLOCATE, RENAMEAT, UNLINKAT, OPENAT, FTRUNCATE, MKDIRAT, KINDS };

static int armed = -1, error_code;
static long left, hits, counts[KINDS];

void quiver_fault_arm(int kind, long k, int code) {
  armed = kind;
  left = k;
  error_code = code;
  hits = 0;
  for (int i = 0; i < KINDS; i++) counts[i] = 0;
}
long quiver_fault_hits(void) { return hits; }
long quiver_fault_count(int kind) { return counts[kind]; }

static int fails(int kind) {
  counts[kind]++;
  if (kind != armed || --left != 0) return 0;
  hits++;
  errno = error_code;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(kind, type, name, params, args) \
  type name params { return fails(kind) ? (type)-1 : REAL(name) args; }

WRAP(PWRITEV, ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
WRAP(PWRITEV, ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
WRAP(PWRITEV2, ssize_t, pwritev2, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
WRAP(PWRITEV2, ssize_t, pwritev64v2, (int fd, const struct iovec *v, int n, off64_t at, int f), (fd, v, n, at, f))
WRAP(PWRITE64, ssize_t, pwrite, (int fd, const void *b, size_t n, off_t at), (fd, b, n, at))
WRAP(PWRITE64, ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t at), (fd, b, n, at))
WRAP(FDATASYNC, int, fdatasync, (int fd), (fd))
WRAP(FSYNC, int, fsync, (int fd), (fd))
WRAP(RENAMEAT, int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(UNLINKAT, int, unlinkat, (int a, const char *path, int flags), (a, path, flags))
WRAP(FTRUNCATE, int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(FTRUNCATE, int, ftruncate64, (int fd, off64_t size), (fd, size))
WRAP(MKDIRAT, int, mkdirat, (int a, const char *path, mode_t mode), (a, path, mode))

int posix_fallocate(int fd, off_t at, off_t n) { return fails(FALLOCATE) ? error_code : REAL(posix_fallocate)(fd, at, n); }
int posix_fallocate64(int fd, off64_t at, off64_t n) { return fails(FALLOCATE) ? error_code : REAL(posix_fallocate64)(fd, at, n); }

#define WRAP_OPEN(name)                                   \
  int name(int a, const char *path, int flags, ...) {     \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    mode_t mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                         \
    return fails(OPENAT) ? -1 : REAL(name)(a, path, flags, mode); \
  }
WRAP_OPEN(openat)
WRAP_OPEN(openat64)
