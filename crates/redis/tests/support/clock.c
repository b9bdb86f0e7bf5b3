// A wall clock that is off by as many seconds as the file CLOCK_OFFSET says: for a redis-server, which libfaketime cannot run, since
// its allocator asks for the time before that is ready.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    char text[32] = {0};
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    (void)zone;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec + strtol(text, NULL, 10);
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
