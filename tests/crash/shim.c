/* A disk that loses power, fills up or breaks, and a wall clock that jumps, as far as one process can tell.

   Power: $SHIM_SHADOW holds what has reached the disk of the one flat directory $SHIM_DATA. A file's bytes get there
   when it is flushed (one file i<inode> each), names when the directory is (the list `names`). What was written,
   created, renamed or removed without a flush is not there. $SHIM_IGNORE names files (by a part of the name) whose
   flushes are taken for nothing, and `/` the directory's: the control that shows that the rig can fail.
   Time: the first eight bytes of the file $SHIM_CLOCK say by how many seconds the wall clock is off; every other clock
   is the machine's.
   Failures: the first byte of the file $SHIM_FAIL says what writes and flushes inside $SHIM_DATA come to:
   0 success, 1 ENOSPC on write, 2 EIO on write, 3 EIO on flush. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 4096
static struct { ino_t inode; int held; off_t low, high; } slots[SLOTS];
static int used;
static const char *data, *shadow, *ignored;
static volatile unsigned char *failing;
static volatile long long *ahead;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* The name of an open file if it lies in the directory ("" for the directory itself), else NULL. */
static const char *inside(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = data ? readlink(link, path, 4095) : -1;
    size_t prefix = data ? strlen(data) : 0;
    if (length < 0) return NULL;
    path[length] = 0;
    if (strncmp(path, data, prefix) || (path[prefix] && path[prefix] != '/')) return NULL;
    return path[prefix] ? path + prefix + 1 : "";
}

static int slot_of(int fd, ino_t inode) { /* the inode stays held, so that its number is not given to another file */
    for (int i = 0; i < used; i++) if (slots[i].inode == inode) return i;
    if (fd < 0 || used == SLOTS) return -1;
    slots[used].inode = inode;
    slots[used].held = fcntl(fd, F_DUPFD_CLOEXEC, 512);
    slots[used].low = 0;
    slots[used].high = (off_t)1 << 62; /* never flushed: all of it is to be copied */
    return used++;
}

static void dirty(int fd, off_t low, off_t high) {
    struct stat found;
    if (!shadow || fstat(fd, &found) || !S_ISREG(found.st_mode)) return;
    pthread_mutex_lock(&lock);
    int at = slot_of(-1, found.st_ino);
    if (at >= 0) {
        if (low < slots[at].low) slots[at].low = low;
        if (high > slots[at].high) slots[at].high = high;
    }
    pthread_mutex_unlock(&lock);
}

static void mirror_file(int fd) {
    char name[4096], path[64], block[65536];
    struct stat found;
    if (fstat(fd, &found)) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int at = slot_of(fd, found.st_ino), from = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof name, "%s/i%lu", shadow, (unsigned long)found.st_ino);
    int to = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    off_t low = at < 0 ? 0 : slots[at].low, high = at < 0 || slots[at].high > found.st_size ? found.st_size : slots[at].high;
    static ssize_t (*put)(int, const void *, size_t, off_t);
    if (!put) put = dlsym(RTLD_NEXT, "pwrite64");
    while (low < high) {
        ssize_t got = pread(from, block, high - low < 65536 ? high - low : 65536, low);
        if (got <= 0) break;
        if (put(to, block, got, low) != got) abort();
        low += got;
    }
    static int (*cut)(int, off_t);
    if (!cut) cut = dlsym(RTLD_NEXT, "ftruncate64");
    if (cut(to, found.st_size)) abort();
    if (at >= 0) slots[at].low = (off_t)1 << 62, slots[at].high = 0;
    close(from);
    close(to);
}

static void mirror_names(void) {
    char list[4096], temporary[4096], path[4096];
    snprintf(list, sizeof list, "%s/names", shadow);
    snprintf(temporary, sizeof temporary, "%s/names.tmp", shadow);
    FILE *out = fopen(temporary, "w");
    DIR *directory = opendir(data);
    if (!out || !directory) abort();
    for (struct dirent *entry; (entry = readdir(directory));) {
        snprintf(path, sizeof path, "%s/%s", data, entry->d_name);
        struct stat found;
        if (lstat(path, &found) || !S_ISREG(found.st_mode)) continue;
        fprintf(out, "%lu %s\n", (unsigned long)found.st_ino, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) { slot_of(fd, found.st_ino); close(fd); }
    }
    closedir(directory);
    if (fclose(out)) abort();
    static int (*move)(const char *, const char *);
    if (!move) move = dlsym(RTLD_NEXT, "rename");
    move(temporary, list);
}

static void flushed(int fd) {
    char path[4096];
    const char *name = shadow ? inside(fd, path) : NULL;
    if (!name || strchr(name, '/')) return;
    if (ignored && (*name ? strstr(name, ignored) != NULL : !strcmp(ignored, "/"))) return;
    pthread_mutex_lock(&lock);
    if (*name) mirror_file(fd); else mirror_names();
    pthread_mutex_unlock(&lock);
}

static int refused(int fd, int flush) {
    char path[4096];
    unsigned char how = failing ? *failing : 0;
    if (!how || (how == 3) != flush || !inside(fd, path)) return 0;
    return how == 1 ? ENOSPC : EIO;
}

static void *shared(const char *name, size_t size) {
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (name && map == MAP_FAILED) abort();
    if (fd >= 0) close(fd);
    return map == MAP_FAILED ? NULL : map;
}

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    shadow = getenv("SHIM_SHADOW"), ignored = getenv("SHIM_IGNORE"), data = getenv("SHIM_DATA");
    failing = shared(getenv("SHIM_FAIL"), 1);
    ahead = shared(getenv("SHIM_CLOCK"), 8);
    DIR *directory = shadow ? opendir(data) : NULL;
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) { /* what is there at the start is on the disk */
        snprintf(path, sizeof path, "%s/%s", data, entry->d_name);
        struct stat found;
        if (lstat(path, &found) || !S_ISREG(found.st_mode)) continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        mirror_file(fd);
        close(fd);
    }
    closedir(directory);
    mirror_names();
}

#define FAIL(flush) int error = refused(fd, flush); if (error) { errno = error; return -1; }
#define WRITE(name, call, at, ...) \
    ssize_t name(int fd, __VA_ARGS__) { \
        REAL(ssize_t, #name, int fd_, __VA_ARGS__); FAIL(0) \
        off_t from = at; ssize_t done = real call; if (done > 0) dirty(fd, from, from + done); return done; }
WRITE(write, (fd, from_, count), lseek(fd, 0, SEEK_CUR), const void *from_, size_t count)
WRITE(writev, (fd, parts, count), lseek(fd, 0, SEEK_CUR), const struct iovec *parts, int count)
WRITE(pwrite, (fd, from_, count, place), place, const void *from_, size_t count, off_t place)
WRITE(pwrite64, (fd, from_, count, place), place, const void *from_, size_t count, off_t place)
WRITE(pwritev, (fd, parts, count, place), place, const struct iovec *parts, int count, off_t place)
WRITE(pwritev64, (fd, parts, count, place), place, const struct iovec *parts, int count, off_t place)
#define FLAGGED(name) WRITE(name, (fd, parts, count, place, flags), place, const struct iovec *parts, int count, off_t place, int flags)
FLAGGED(pwritev2)
FLAGGED(pwritev64v2)
#define SYNC(name) int name(int fd) { REAL(int, #name, int); FAIL(1) \
        int done = real(fd); if (!done) flushed(fd); return done; }
SYNC(fsync)
SYNC(fdatasync)
#define CUT(name) int name(int fd, off_t length) { REAL(int, #name, int, off_t); \
        int done = real(fd, length); if (!done) dirty(fd, length, (off_t)1 << 62); return done; }
CUT(ftruncate)
CUT(ftruncate64)
#define ALLOCATE(name) int name(int fd, off_t start, off_t length) { REAL(int, #name, int, off_t, off_t); \
        int error = refused(fd, 0); return error ? error : real(fd, start, length); }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

int clock_gettime(clockid_t id, struct timespec *at) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int done = real(id, at);
    if (!done && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *ahead;
    return done;
}

int gettimeofday(struct timeval *at, void *zone) {
    REAL(int, "gettimeofday", struct timeval *, void *);
    int done = real(at, zone);
    if (!done && ahead) at->tv_sec += *ahead;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
