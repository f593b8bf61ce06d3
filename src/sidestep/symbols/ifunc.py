"""IFUNCs: which variant of memcpy, strlen and the like a running process really calls.

A symbol of type GNU_IFUNC names a resolver. The loader calls it once and stores what it returns in the slots
of
everybody who uses the function; those slots are read here. Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sidestep.symbols.content import Reader, read_memory
from sidestep.symbols.functions import Function
from sidestep.symbols.mapped import VDSO
from sidestep.symbols.modules import Module
from sidestep.symbols.relocations import import_slots, indirect_slots


class Variant(NamedTuple):
    """The code that an IFUNC stands for, and its module (the vdso for some of the C library's)."""

    module: Module
    function: Function


def chosen_variant(
    modules: Sequence[Module], module: Module, function: Function, read: Reader
) -> Variant | None:
    """Where calls of an IFUNC of `module` arrive; None while no slot tells.

    First the slots of the module itself (IRELATIVE relocations against the resolver), then those by which
    other
    modules import the name. A slot that still leads to its own module's linkage table is not bound yet; one
    that
    leads into a third module belongs to another function of that name.
    """
    homes = [module, *(other for other in modules if other.name == VDSO)]
    for slot in indirect_slots(module.elf).get(function.start, ()):
        variant = _variant_at(homes, read, module.bias + slot)
        if variant is not None:
            return variant
    names = frozenset(name.partition("@")[0] for name in (function.symbol, *function.aliases))
    for other in modules:
        for imported in import_slots(other.elf, names):
            variant = _variant_at(homes, read, other.bias + imported.address)
            if variant is not None:
                return variant
    return None


def _variant_at(homes: Sequence[Module], read: Reader, slot: int) -> Variant | None:
    value = int.from_bytes(read_memory(read, slot, 8), "little")
    for module in homes:
        address = value - module.bias
        if module.elf.in_text(address):
            function = module.functions.at(address) or module.functions.containing(address)
            if function is not None and function.kind != "ifunc":
                return Variant(module, function)
    return None
