// A process that asks for its parent's id forks instead: a test calls it by std::os::unix::process::parent_id, without unsafe code.
#include <unistd.h>

pid_t getppid(void) {
    return fork();
}
