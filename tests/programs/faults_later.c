// The same handlers for faults, installed after a controller may have attached.
// long: 1000
// refusable: call_through illegal trap
#define LATER
#include "faults.c"
