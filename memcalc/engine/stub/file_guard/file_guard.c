/* Sets files aside before a script changes them, where no mount namespace keeps them.

   Preloaded into a script and the processes that it starts. Before a function of the C library
   changes or deletes a file that was there before the run, the file itself moves to the folder
   $MEMCALC_ASIDE, and a copy takes its place for the script. A journal in the folder tells what was
   done; memcalc/script/set_aside.py takes it back when the script has ended, the last first. Each
   entry is five texts, each ended by a zero byte: a letter, two paths, and of a file or folder its
   mode with owners, and its times. An entry comes before what it tells of: a process may be killed at any time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define EXPORT __attribute__((visibility("default")))
#define CLONE_FILE 0x40049409 /* FICLONE in linux/fs.h */
#define REAL(name) ((__typeof__(&name))real(#name))

static char aside[PATH_MAX];
static size_t aside_length;
static int64_t began;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("MEMCALC_ASIDE"), *time = getenv("MEMCALC_ASIDE_BEGAN");
  if (!folder || !time || strlen(folder) > PATH_MAX - 64) return;
  began = strtoll(time, NULL, 10);
  aside_length = strlen(strcpy(aside, folder));
}

static int inside(const char *path, const char *folder) {
  size_t length = strlen(folder);
  return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

struct found {
  char path[PATH_MAX]; /* with no links in it */
  struct stat status;
  int is_old;          /* It was there before the run. */
  int has_birth;       /* A change of mode does not make it look new. */
  int is_aside;        /* Somebody holds a descriptor of a file that was set aside. */
};

/* struct statx of linux/stat.h, which older C libraries do not declare. */
struct times {
  int64_t seconds;
  uint32_t nanoseconds;
  int32_t unused;
};
struct more {
  uint32_t mask, rest[15];
  struct times accessed, born, changed, modified;
  uint64_t spare[16];
};
#define HAS_BIRTH 0x800

static int64_t nanoseconds(struct times time) { return time.seconds * 1000000000LL + time.nanoseconds; }

/* What a path leads to; returns whether anything is there. */
static int find(int folder, const char *path, int follow, struct found *found) {
  char link[64];
  int before = errno;
  int file = path ? syscall(SYS_openat, folder, path, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW), 0) : dup(folder);
  found->is_old = found->is_aside = 0;
  found->path[0] = 0;
  errno = before;
  if (file < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, found->path, PATH_MAX - 1);
  struct more more = {0};
  int known = length > 0 && !fstat(file, &found->status) &&
              !syscall(SYS_statx, file, "", 0x1000 /* AT_EMPTY_PATH */, 0x7ff | HAS_BIRTH, &more);
  close(file);
  errno = before;
  if (!known) return 0;
  found->path[length] = 0;
  mode_t mode = found->status.st_mode;
  int has_content = S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode);
  int is_kernels = inside(found->path, "/proc") || inside(found->path, "/sys") || inside(found->path, "/dev");
  if (!has_content || is_kernels || !found->status.st_nlink) return 1;
  found->is_aside = inside(found->path, aside);
  found->has_birth = !!(more.mask & HAS_BIRTH);
  found->is_old = !found->is_aside && nanoseconds(found->has_birth ? more.born : more.changed) < began;
  return 1;
}

/* ---- the journal */

static int open_journal(void) {
  char path[PATH_MAX + 16];
  snprintf(path, sizeof path, "%s/journal", aside);
  int journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (journal >= 0) flock(journal, LOCK_EX);
  return journal;
}

static int note_in(int journal, char what, const char *first, const char *second, const struct stat *status) {
  char line[2 * PATH_MAX + 128];
  struct stat none = {0};
  if (!status) status = &none;
  int length = snprintf(line, sizeof line, "%c%c%s%c%s%c%o %u %u%c%lld.%09ld %lld.%09ld%c", what, 0, first, 0, second, 0,
                        status->st_mode & 07777, status->st_uid, status->st_gid, 0, (long long)status->st_atim.tv_sec,
                        status->st_atim.tv_nsec, (long long)status->st_mtim.tv_sec, status->st_mtim.tv_nsec, 0);
  return write(journal, line, length) == length ? 0 : -1;
}

static int note(char what, const char *first, const char *second, const struct stat *status) {
  int before = errno, journal = open_journal();
  if (journal < 0) return -1;
  int failed = note_in(journal, what, first, second, status);
  close(journal);
  if (!failed) errno = before;
  return failed;
}

static void note_new(const char *path) { note('n', path, "", NULL); }

/* ---- set aside */

static int copy(const char *source, const char *target, const struct stat *status) {
  if (S_ISLNK(status->st_mode)) {
    char leads_to[PATH_MAX];
    ssize_t length = readlink(source, leads_to, PATH_MAX - 1);
    if (length < 0) return -1;
    leads_to[length] = 0;
    return REAL(symlinkat)(leads_to, AT_FDCWD, target);
  }
  int in = syscall(SYS_openat, AT_FDCWD, source, O_RDONLY | O_CLOEXEC, 0);
  int out = in < 0 ? -1 : syscall(SYS_openat, AT_FDCWD, target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int failed = out < 0;
  if (!failed && ioctl(out, CLONE_FILE, in)) {
    ssize_t sent;
    while ((sent = sendfile(out, in, NULL, 1 << 30)) > 0) {}
    failed = sent < 0;
  }
  int why = errno;
  if (out >= 0) {
    struct timespec times[] = {status->st_atim, status->st_mtim};
    if (REAL(fchown)(out, status->st_uid, status->st_gid)) {}
    REAL(fchmod)(out, status->st_mode & 07777);
    REAL(futimens)(out, times);
    close(out);
  }
  if (in >= 0) close(in);
  errno = why;
  return failed ? -1 : 0;
}

/* Moves an old file aside; with `copies`, the script finds a copy of its own in its place. */
static int set_aside(struct found *old, int copies) {
  char kept[PATH_MAX + 32];
  int before = errno, journal = open_journal();
  if (journal < 0) return -1;
  snprintf(kept, sizeof kept, "%s/%lld", aside, (long long)lseek(journal, 0, SEEK_END));
  int failed = note_in(journal, 'a', old->path, kept, &old->status);
  if (!failed && REAL(rename)(old->path, kept)) {
    strcat(kept, "-copy");
    failed = errno != EXDEV || copy(old->path, kept, &old->status) ||
             note_in(journal, 'a', old->path, kept, &old->status) || REAL(unlink)(old->path);
  }
  if (!failed && copies && copy(kept, old->path, &old->status)) {
    failed = 1;
  }
  close(journal);
  if (!failed) errno = before;
  return failed ? -1 : 0;
}

/* Before a file changes: its content, or only its mode, owner or times. */
static int keep(int folder, const char *path, int follow, int content, struct found *found) {
  if (!aside_length || !find(folder, path, follow, found)) return 0;
  if (found->is_aside && path) {
    errno = EACCES;
    return -1;
  }
  if (!found->is_old) return 0;
  if (S_ISDIR(found->status.st_mode) || (!content && found->has_birth))
    return note('d', found->path, "", &found->status);
  return set_aside(found, 1);
}

/* Before a name is gone; returns 1 where it is gone now, since the file was set aside. */
static int keep_name(int folder, const char *path, struct found *found) {
  if (!aside_length || !find(folder, path, 0, found) || !found->is_old) return 0;
  if (S_ISDIR(found->status.st_mode)) return note('r', found->path, "", &found->status);
  return set_aside(found, 0) ? -1 : 1;
}

/* ---- content */

static void note_made(int file, const struct found *before) {
  struct found made;
  if (file < 0 || !aside_length || before->path[0]) return;
  if (find(file, NULL, 1, &made) && S_ISREG(made.status.st_mode)) note_new(made.path);
}

/* The file itself, also where the path leads through a descriptor of what was set aside. */
#define AT(path) (found.is_old && S_ISREG(found.status.st_mode) ? found.path : path)

static int may_write(int flags) {
  int fails_on_old = flags & O_EXCL && flags & O_CREAT;
  return ((flags & O_ACCMODE) != O_RDONLY || flags & (O_TRUNC | O_CREAT)) && !fails_on_old;
}

#define OPENS(FOLDER, flags, call)                                                                       \
  struct found found = {.path = ""};                                                                     \
  mode_t mode = 0;                                                                                       \
  if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                                                                 \
    va_list more;                                                                                        \
    va_start(more, flags);                                                                               \
    mode = va_arg(more, mode_t);                                                                         \
    va_end(more);                                                                                        \
  }                                                                                                      \
  if (may_write(flags) && keep(FOLDER, path, !(flags & O_NOFOLLOW), 1, &found)) return -1;                  \
  int file = call;                                                                                       \
  if (flags & O_CREAT) note_made(file, &found);                                                          \
  return file;

EXPORT int open(const char *path, int flags, ...) {
  OPENS(AT_FDCWD, flags, REAL(open)(AT(path), flags, mode))
}
EXPORT int open64(const char *path, int flags, ...) {
  OPENS(AT_FDCWD, flags, REAL(open64)(AT(path), flags, mode))
}
EXPORT int openat(int folder, const char *path, int flags, ...) {
  OPENS(folder, flags, REAL(openat)(folder, AT(path), flags, mode))
}
EXPORT int openat64(int folder, const char *path, int flags, ...) {
  OPENS(folder, flags, REAL(openat64)(folder, AT(path), flags, mode))
}
EXPORT int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
/* What programs call that were compiled with _FORTIFY_SOURCE. */
EXPORT int __open_2(const char *path, int flags) { return open(path, flags); }
EXPORT int __open64_2(const char *path, int flags) { return open64(path, flags); }
EXPORT int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
EXPORT int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }

#define OPENS_STREAM(call)                                                                               \
  struct found found = {.path = ""};                                                                     \
  int writes = path && strpbrk(mode, "wa+");                                                             \
  if (writes && keep(AT_FDCWD, path, 1, 1, &found)) return NULL;                                            \
  FILE *stream = call;                                                                                   \
  if (writes && stream) note_made(fileno(stream), &found);                                               \
  return stream;

EXPORT FILE *fopen(const char *path, const char *mode) { OPENS_STREAM(REAL(fopen)(AT(path), mode)) }
EXPORT FILE *fopen64(const char *path, const char *mode) { OPENS_STREAM(REAL(fopen64)(AT(path), mode)) }
EXPORT FILE *freopen(const char *path, const char *mode, FILE *old) {
  OPENS_STREAM(REAL(freopen)(AT(path), mode, old))
}
EXPORT FILE *freopen64(const char *path, const char *mode, FILE *old) {
  OPENS_STREAM(REAL(freopen64)(AT(path), mode, old))
}

/* ---- mode, times, length: CALL, with the file itself in place of a path that led to it */

#define CHANGES(name, FOLDER, PATH, FOLLOW, CONTENT, declared, passed)                                   \
  EXPORT int name declared {                                                                             \
    struct found found = {.path = ""};                                                                   \
    if (keep(FOLDER, PATH, FOLLOW, CONTENT, &found)) return -1;                                                   \
    return REAL(name) passed;                                                                            \
  }
#define FOLLOWS(flags) (!((flags) & AT_SYMLINK_NOFOLLOW))

CHANGES(truncate, AT_FDCWD, path, 1, 1, (const char *path, off_t length), (path, length))
CHANGES(truncate64, AT_FDCWD, path, 1, 1, (const char *path, off64_t length), (path, length))
CHANGES(chmod, AT_FDCWD, path, 1, 0, (const char *path, mode_t mode), (path, mode))
CHANGES(fchmod, file, NULL, 1, 0, (int file, mode_t mode), (file, mode))
CHANGES(fchmodat, folder, path, FOLLOWS(flags), 0,
        (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags))
CHANGES(chown, AT_FDCWD, path, 1, 0, (const char *path, uid_t user, gid_t group), (path, user, group))
CHANGES(lchown, AT_FDCWD, path, 0, 0, (const char *path, uid_t user, gid_t group), (path, user, group))
CHANGES(fchown, file, NULL, 1, 0, (int file, uid_t user, gid_t group), (file, user, group))
CHANGES(fchownat, folder, path, FOLLOWS(flags), 0,
        (int folder, const char *path, uid_t user, gid_t group, int flags), (folder, path, user, group, flags))
CHANGES(utime, AT_FDCWD, path, 1, 0, (const char *path, const struct utimbuf *times), (path, times))
CHANGES(utimes, AT_FDCWD, path, 1, 0, (const char *path, const struct timeval times[2]), (path, times))
CHANGES(lutimes, AT_FDCWD, path, 0, 0, (const char *path, const struct timeval times[2]), (path, times))
CHANGES(futimes, file, NULL, 1, 0, (int file, const struct timeval times[2]), (file, times))
CHANGES(futimesat, folder, path, 1, 0,
        (int folder, const char *path, const struct timeval times[2]), (folder, path, times))
CHANGES(futimens, file, NULL, 1, 0, (int file, const struct timespec times[2]), (file, times))
CHANGES(utimensat, folder, path, FOLLOWS(flags), 0,
        (int folder, const char *path, const struct timespec times[2], int flags), (folder, path, times, flags))
CHANGES(setxattr, AT_FDCWD, path, 1, 1,
        (const char *path, const char *name, const void *value, size_t size, int flags), (path, name, value, size, flags))
CHANGES(removexattr, AT_FDCWD, path, 1, 1, (const char *path, const char *name), (path, name))

/* ---- names */

EXPORT int unlinkat(int folder, const char *path, int flags) {
  struct found found;
  struct stat status;
  int is_folder = !fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) && S_ISDIR(status.st_mode);
  int kept = is_folder == !!(flags & AT_REMOVEDIR) ? keep_name(folder, path, &found) : 0;
  return kept ? (kept < 0 ? -1 : 0) : REAL(unlinkat)(folder, path, flags);
}

EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORT int remove(const char *path) {
  struct stat status;
  return unlinkat(AT_FDCWD, path, !lstat(path, &status) && S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}

/* The place of a name that need not be there, with no links in it. */
static int find_place(int folder, const char *path, char *place) {
  char parent[PATH_MAX];
  struct found found;
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  size_t name = length;
  while (name && path[name - 1] != '/') name--;
  if (length >= PATH_MAX) return 0;
  memcpy(parent, path, name);
  strcpy(parent + name, name ? "." : "./");
  if (!find(folder, parent, 1, &found)) return 0;
  const char *root = found.path[1] ? found.path : "";
  return snprintf(place, PATH_MAX, "%s/%.*s", root, (int)(length - name), path + name) < PATH_MAX;
}

enum { NO_REPLACE = 1, EXCHANGE = 2 }; /* linux/fs.h */

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  struct found source, target;
  char source_place[PATH_MAX] = "", target_place[PATH_MAX] = "";
  if (!aside_length) return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  int known = find(from_folder, from, 0, &source), is_there = find(to_folder, to, 0, &target);
  int is_same = known && is_there && source.status.st_ino == target.status.st_ino &&
                source.status.st_dev == target.status.st_dev;
  if (!known || is_same || (is_there && flags & NO_REPLACE))
    return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  find_place(from_folder, from, source_place);
  find_place(to_folder, to, target_place);
  int is_folder = S_ISDIR(source.status.st_mode);
  if (source.is_old && is_folder && note('m', source_place, target_place, NULL)) return -1;
  if (source.is_old && !is_folder && set_aside(&source, 1)) return -1;
  if (is_there && target.is_old) {
    int is_over_folder = S_ISDIR(target.status.st_mode);
    if (is_over_folder ? note('r', target.path, "", &target.status) : set_aside(&target, flags & EXCHANGE)) return -1;
  }
  int failed = syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (!failed && !source.is_old) note('k', source_place, target_place, NULL);
  return failed ? -1 : 0;
}

EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return renameat2(from_folder, from, to_folder, to, 0);
}

EXPORT int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int noted_new(int failed, int folder, const char *path) {
  struct found made;
  if (!failed && aside_length && find(folder, path, 0, &made)) note_new(made.path);
  return failed;
}

EXPORT int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  struct found found;
  if (keep(from_folder, from, flags & AT_SYMLINK_FOLLOW, 1, &found)) return -1;
  return noted_new(REAL(linkat)(from_folder, from, to_folder, to, flags), to_folder, to);
}

EXPORT int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORT int symlinkat(const char *target, int folder, const char *path) {
  return noted_new(REAL(symlinkat)(target, folder, path), folder, path);
}

EXPORT int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
  return noted_new(REAL(mkdirat)(folder, path, mode), folder, path);
}

EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int file, const char *path,
                                            int flags, mode_t mode) {
  struct found found;
  if (may_write(flags) && keep(AT_FDCWD, path, 1, 1, &found)) return errno;
  return REAL(posix_spawn_file_actions_addopen)(actions, file, path, flags, mode);
}
