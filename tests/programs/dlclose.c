// A library is loaded, used and unloaded again and again; its address may be another one, or another library's.
// long: 10000
// library: plugin
// only: glibc
#include "program.h"
#include <dlfcn.h>

PROBED long call_plugin(long (*function)(long), long value) { return function(value); }

int main(int argc, char **argv)
{
    begin(argc, argv, 20);
    const char *path = getenv("PLUGIN");
    long sum = 0;
    require(path != NULL, "PLUGIN does not say where the library is");
    for (long turn = 0; turn < size; turn++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        require(library != NULL, "the library cannot be loaded");
        long (*function)(long) = (long (*)(long))(uintptr_t)dlsym(library, "plugin_work");
        for (int call = 0; call < 10; call++)
            sum += call_plugin(function, turn + call);
        dlclose(library);
    }
    say("sum", sum);
    count("call_plugin", size * 10);
    return end();
}
