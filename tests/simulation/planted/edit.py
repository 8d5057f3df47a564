"""Changes production functions in this process: a fragment of a function's source is replaced by another one."""

import importlib
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple


class TargetChangedError(Exception):
    """A planted bug does not fit the production code any more: it has to be written anew."""


class Edit(NamedTuple):
    """One change. `target` names a function as `package.module:Class.method`.

    `old` is a fragment that its source, without the indentation of its first line, has exactly once.
    """

    target: str
    old: str
    new: str


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """Change the functions inside the `with`. TargetChangedError: one of them has another source.

    The code of the function object changes, so the change holds wherever the function was imported to.
    """
    by_target: dict[str, list[Edit]] = defaultdict(list)
    for edit in edits:
        by_target[edit.target].append(edit)
    changed = [(function := _function(target), _code(function, of)) for target, of in by_target.items()]
    originals = [(function, function.__code__) for function, _ in changed]
    for function, code in changed:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in originals:
            function.__code__ = code


def _function(target: str) -> FunctionType:
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        raise TargetChangedError(f"{target} is not there any more") from error
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise TargetChangedError(f"{target} is no function any more")
    return found


def _code(function: FunctionType, edits: Sequence[Edit]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if (count := source.count(edit.old)) != 1:
            raise TargetChangedError(f"{edit.target} has {count} times, not once: {edit.old}")
        source = source.replace(edit.old, edit.new)
    former = function.__code__
    compiled = compile("\n" * (former.co_firstlineno - 1) + source, former.co_filename, "exec", dont_inherit=True)
    for constant in compiled.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == former.co_name and not constant.co_freevars:
            return constant
    raise TargetChangedError(f"{edits[0].target} cannot be changed: it uses names of an outer function")
