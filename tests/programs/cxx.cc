// C++ names: namespaces, overloads, templates, methods, operators, constructors, lambdas.
// long: 30000000
#include "program.h"

namespace shapes {
PROBED long area(int side) { return static_cast<long>(side) * side; }
PROBED long area(int width, long height) { return width * height; }
namespace {
PROBED long hidden(long value) { return value ^ 3; }
}
struct Square {
    long side;
    PROBED explicit Square(long side) : side(side) {}
    PROBED long grow(long by) { return side += by; }
    PROBED long operator()(long value) const { return value * side; }
    PROBED bool operator<(const Square &other) const { return side < other.side; }
};
}

template <typename Type> PROBED Type twice(Type value) { return static_cast<Type>(value * 5 + 1); }

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    auto lambda = [](long value) __attribute__((noipa)) { return value - 8; };
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        shapes::Square square(turn % 9);
        sum += shapes::area(5) + shapes::area(2, turn) + shapes::hidden(turn) + square.grow(2) + square(turn);
        sum += (square < shapes::Square(5)) + twice<long>(turn) + twice<short>(7) + lambda(turn);
    }
    say("sum", sum);
    count("shapes::area(int)", size);
    count("shapes::area(int, long)", size);
    count("shapes::(anonymous namespace)::hidden(long)", size);
    count("shapes::Square::grow", size);
    count("shapes::Square::operator()(long) const", size);
    count("shapes::Square::operator<(shapes::Square const&) const", size);
    count("long twice<long>(long)", size);
    count("short twice<short>(short)", size);
    return end();
}
