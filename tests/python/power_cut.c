/* Writes down what a process asks of the file system, for a checker that plays power cuts: one line each, in order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void tell(const char *format, ...)
{
    static int log = -1;
    int kept = errno;
    char line[9000];
    va_list given;
    va_start(given, format);
    int length = vsnprintf(line, sizeof line, format, given);
    va_end(given);
    if (log < 0 && getenv("POWER_CUT_LOG"))
        log = REAL(open64)(getenv("POWER_CUT_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log >= 0 && REAL(write)(log, line, length) < 0)
        abort();
    errno = kept;
}

/* What is done to an open file or folder. */
static void tell_of(const char *what, int fd)
{
    char link[64], path[4096];
    struct stat facts;
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0 && path[0] == '/' && fstat(fd, &facts) == 0) {
        path[length] = 0;
        tell("%s\t%lu\t%s\n", S_ISDIR(facts.st_mode) ? "folder" : what, (unsigned long)facts.st_ino, path);
    }
    errno = kept;
}

int open64(const char *path, int flags, ...)
{
    va_list given;
    va_start(given, flags);
    int mode = flags & O_CREAT ? va_arg(given, int) : 0;
    va_end(given);
    int fd = REAL(open64)(path, flags, mode);
    if (fd >= 0 && flags & O_CREAT)
        tell_of("create", fd);
    return fd;
}

ssize_t write(int fd, const void *bytes, size_t length)
{
    ssize_t written = REAL(write)(fd, bytes, length);
    tell_of("write", fd);
    return written;
}

ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    ssize_t written = REAL(writev)(fd, pieces, n);
    tell_of("write", fd);
    return written;
}

int fsync(int fd)
{
    int done = REAL(fsync)(fd);
    tell_of("sync", fd);
    return done;
}

int rename(const char *from, const char *to)
{
    tell("rename\t%s\t%s\n", from, to); /* before: the next one may see it */
    return REAL(rename)(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    int done = REAL(linkat)(from_fd, from, to_fd, to, flags);
    if (done == 0)
        tell("link\t%s\t%s\n", from, to);
    return done;
}

int unlink(const char *path)
{
    int done = REAL(unlink)(path);
    if (done == 0)
        tell("unlink\t%s\t\n", path);
    return done;
}

int mkdir(const char *path, mode_t mode)
{
    int done = REAL(mkdir)(path, mode);
    if (done == 0)
        tell("mkdir\t%s\t\n", path);
    return done;
}
