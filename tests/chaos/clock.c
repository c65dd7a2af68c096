/* libfaketime 0.9.10 refuses sleeps by the monotonic clock, which Python's are, if it leaves that clock alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *remaining) {
    return syscall(SYS_clock_nanosleep, clock, flags, request, remaining) < 0 ? errno : 0;
}
