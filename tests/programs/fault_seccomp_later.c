// The same, with a filter that comes after a controller may have attached: its fronts of handlers have to stay.
// only: glibc
// refused: seccomp
#define LATER
#include "fault_seccomp.c"
